"""How far arithmetic alone moves the gap between two tokens: measured, not assumed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftproof.forensics.compare import common_prefix
from draftproof.forensics.subjects.base import Run, Top

STEPS = 2.0  # a tie within two steps of the dtype is near on any machine
MANTISSA = {"float32": 23, "bfloat16": 7, "float16": 10}
NOBODY_DEFENDS = 2.0  # nats: maintainers call no larger gap numeric
DOUBTFUL = 4.0  # times the noise of rows alone; a batch beyond that is no witness for rounding
# of a grid: gaps needed, share of them on it, error of float32 log-probabilities, finest 2 ** -n
ENOUGH, ON_GRID, GRID_ERROR, FINEST = 50, 0.98, 1e-5, 10


def step_of(dtype: str | None, magnitude: float) -> float | None:
    """Distance of neighbouring numbers of a dtype at a magnitude; None for an unknown dtype.

    bfloat16 at 16 .. 32: 0.125.
    """
    if dtype not in MANTISSA or magnitude == 0:
        return None
    return float(2.0 ** (math.floor(math.log2(abs(magnitude))) - MANTISSA[dtype]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Changes of the gap between the two likeliest tokens, same tokens before, other shapes.

    band:    the largest change seen, but see `measure`
    sources: which controls it was seen in
    doubted: a control that moved gaps further than arithmetic does, in words
    """

    band: float = 0.0
    typical: float = 0.0
    samples: int = 0
    sources: tuple[str, ...] = ()
    doubted: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Changes of gaps in one control.

    alone: whether a row was computed by itself: then no neighbour can have changed it
    """

    source: str
    values: Sequence[float]
    alone: bool


def changes(reference: Run, other: Run) -> list[float]:
    """|change of the gap| at every token before two runs part, row by row."""
    found = []
    for mine, theirs in zip(reference.answers, other.answers, strict=True):
        if mine.error or theirs.error:
            continue
        # the token at which they part was still scored after the same tokens
        same = common_prefix(mine.ids, theirs.ids) + 1
        pairs = zip(mine.tops[:same], theirs.tops[:same], strict=False)
        found += [change for a, b in pairs if (change := gap_change(a, b)) is not None]
    return found


def gap_change(one: Top, other: Top) -> float | None:
    """How far the gap of the two likeliest tokens of `one` differs in `other`; None: not shown."""
    if len(one.ids) < 2:
        return None
    first, second = one.ids[:2]
    known = dict(zip(other.ids, other.values, strict=True))
    if first not in known or second not in known:
        return None
    return abs((one.values[0] - one.values[1]) - (known[first] - known[second]))


def measure(samples: Iterable[Sample]) -> Noise:
    """The band over all controls that could be read.

    A batch that mixes up its rows moves gaps too, and would excuse itself. So where rows alone
    were measured, in another shape, the band is at most DOUBTFUL times what was seen there.
    """
    kept = [sample for sample in samples if sample.values]
    every = sorted(value for sample in kept for value in sample.values)
    if not every:
        return Noise()
    band, doubted = every[-1], ""
    alone = max((value for s in kept if s.alone for value in s.values), default=None)
    if alone is not None and band > DOUBTFUL * alone:
        worst = max(kept, key=lambda sample: max(sample.values))
        doubted = (
            f"{worst.source} moves a gap by {band:.3g}, rows alone in another shape "
            f"move gaps by at most {alone:.3g}"
        )
        band = DOUBTFUL * alone
    return Noise(
        band=band,
        typical=every[len(every) // 2],
        samples=len(every),
        sources=tuple(sample.source for sample in kept),
        doubted=doubted,
    )


def grid_of(gaps: Iterable[float]) -> float | None:
    """The step of a server that hides its dtype: 2 ** -n of which nearly all gaps are multiples.

    Logits in bfloat16 differ by whole steps of it, and so do the log-probabilities made of them:
    a constant of the row is taken off both. None where gaps are finer than any 16-bit format.
    """
    known = [gap for gap in gaps if gap > 0]
    if len(known) < ENOUGH:
        return None
    for power in range(FINEST):
        step = 2.0**-power
        on = sum(abs(gap / step - round(gap / step)) < GRID_ERROR / step for gap in known)
        if on >= ON_GRID * len(known):
            return step
    return None


def decays(rates: Sequence[float]) -> bool:
    """Whether the later half of a series lies clearly below the earlier one."""
    half = len(rates) // 2
    if half < 2:
        return False
    early, late = sum(rates[:half]) / half, sum(rates[-half:]) / half
    return late < 0.6 * early and any(a > b for a, b in pairwise(rates))
