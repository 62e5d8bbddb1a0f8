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

    band: the largest change seen; sources: which controls it was seen in
    """

    band: float = 0.0
    typical: float = 0.0
    samples: int = 0
    sources: tuple[str, ...] = ()


def changes(reference: Run, other: Run) -> list[float]:
    """|change of the gap| at every token before two runs part, row by row."""
    found = []
    for mine, theirs in zip(reference.answers, other.answers, strict=True):
        if mine.error or theirs.error:
            continue
        # the token at which they part was still scored after the same tokens
        same = common_prefix(mine.ids, theirs.ids) + 1
        pairs = zip(mine.tops[:same], theirs.tops[:same], strict=False)
        found += [change for a, b in pairs if (change := _change(a, b)) is not None]
    return found


def _change(one: Top, other: Top) -> float | None:
    if len(one.ids) < 2:
        return None
    first, second = one.ids[:2]
    known = dict(zip(other.ids, other.values, strict=True))
    if first not in known or second not in known:
        return None
    return abs((one.values[0] - one.values[1]) - (known[first] - known[second]))


def measure(samples: Iterable[tuple[str, Sequence[float]]]) -> Noise:
    """The band over all controls that could be read."""
    kept = [(name, list(values)) for name, values in samples if values]
    every = sorted(value for _, values in kept for value in values)
    if not every:
        return Noise()
    return Noise(
        band=every[-1],
        typical=every[len(every) // 2],
        samples=len(every),
        sources=tuple(name for name, _ in kept),
    )


def decays(rates: Sequence[float]) -> bool:
    """Whether the later half of a series lies clearly below the earlier one."""
    half = len(rates) // 2
    if half < 2:
        return False
    early, late = sum(rates[:half]) / half, sum(rates[-half:]) / half
    return late < 0.6 * early and any(a > b for a, b in pairwise(rates))
