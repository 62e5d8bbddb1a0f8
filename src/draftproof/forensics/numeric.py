"""Is a fork a near tie that rounding decides? Earned fork by fork; every doubt is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.forensics.compare import common_prefix
from draftproof.forensics.controls import outcome, rerun
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.noise import gap_change, step_of
from draftproof.forensics.probes_outputs import (
    MOVED,
    not_own_best,
    only_ties,
    places,
    score_changes,
)
from draftproof.forensics.subjects.base import Answer
from draftproof.forensics.verdicts import Cause, Finding

RARE = 0.005  # share of scores beyond twice the band that correct runs may show in all
WIDER = 2.0  # times the usual band, for a fork that float32 takes back


def finding(lab: Lab, fork: Fork) -> Finding | None:
    """NUMERIC with its evidence, or None where any part of it fails."""
    if doubts(lab, fork):
        return None
    noise = lab.noise(lab.dtype)
    own, here = lab.found.answers[places(lab)[fork.row]], fork.divergence.position
    clean = rerun(lab)
    reasons = [
        gap_in_words(lab, fork),
        f"measured noise of such gaps: {noise.band:.3g} ({noise.samples} places; "
        f"{' and '.join(noise.sources) or 'no control could run'})",
    ]
    if noise.doubted:
        reasons.append(f"not all of it counts as noise: {noise.doubted}")
    if noise.samples and own.tops:
        reasons.append(f"the candidate's scores before it are within it ({here} places)")
    if own.tops:
        reasons.append(f"all {len(own.ids)} tokens of the row are the candidate's own best")
    if clean is not None:
        reasons.append("gone in float32")
    missing = () if clean is not None else ("a float32 rerun of both sides",)
    return Finding(cause=Cause.NUMERIC, rule="near tie", reasons=tuple(reasons), missing=missing)


def doubts(lab: Lab, fork: Fork) -> list[str]:
    """Why a fork is no near tie of arithmetic; none: it is."""
    at = places(lab)[fork.row]
    mine, found = lab.expected.answers[at], lab.found.answers[at]
    told = []
    if only_ties(lab).value:
        return ["exact ties, in float32 too"]
    if not _near(lab, fork):
        told.append("the gap at the fork is wider than the measured noise")
    if _scores_off(lab, mine, found):
        told.append("the candidate's scores before the fork are further off than the noise")
    if not_own_best(lab, found, lab.dtype):
        told.append("the candidate emits tokens that are not its own best")
    if rerun(lab) is not None and _wrong_in_float32(lab, fork.row, at):
        told.append("the row is wrong in float32, where rounding vanishes")
    return told


def _near(lab: Lab, fork: Fork) -> bool:
    """Within the band; where float32 takes the fork back, within twice as much."""
    if fork.near or fork.gap is None or fork.bounded:
        return bool(fork.near)
    clean = rerun(lab) is not None and fork.gap <= lab.max_gap
    return clean and lab.within_noise(fork.gap / WIDER, _step(fork), lab.dtype)


def _step(fork: Fork) -> float | None:
    return fork.gap / fork.steps if fork.gap and fork.steps else None


def _beyond(lab: Lab, mine: Answer, found: Answer) -> tuple[int, int]:
    """Scores before the first difference beyond the noise of the runs as asked, and all of them."""
    same, beyond, seen = common_prefix(mine.ids, found.ids), 0, 0
    for one, other in zip(mine.tops[:same], found.tops[:same], strict=False):
        change = gap_change(one, other)
        if change is not None:
            step = step_of(lab.dtype, one.values[0]) if one.logits else lab.grid
            seen, beyond = seen + 1, beyond + (not lab.within_noise(change, step, lab.dtype))
    return beyond, seen


def _scores_off(lab: Lab, mine: Answer, found: Answer) -> bool:
    """One place may be beyond the band in a whole correct run, and hardly more."""
    if not lab.noise(lab.dtype).samples or not _beyond(lab, mine, found)[0]:
        return False
    return scores_beyond(lab)[0] > max(1.0, RARE * scores_beyond(lab)[1])


def scores_beyond(lab: Lab) -> tuple[int, int]:
    """The same over all rows."""
    rows = zip(lab.expected.answers, lab.found.answers, strict=True)
    counts = [_beyond(lab, a, b) for a, b in rows if not a.error and not b.error]
    return sum(one for one, _ in counts), sum(all_ for _, all_ in counts)


def _wrong_in_float32(lab: Lab, row: int, at: int) -> bool:
    """The row forks there beyond float32's own rounding, or its scores are off."""
    clean = rerun(lab)
    assert clean is not None
    assert clean.run is not None
    if any(fork.row == row for fork in clean.hard):
        return True
    changes = score_changes(lab, lab.clean_expected, clean.run)
    return sum(off for place, _, _, off in changes if place == at) >= MOVED


# -- in words --------------------------------------------------------------------------------------


def gap_in_words(lab: Lab, fork: Fork) -> str:
    """The gap, in steps of the dtype where that says something."""
    if fork.gap is None:
        return "the gap at the fork is not shown"
    at_least = "at least " if fork.bounded else ""
    steps = _steps(lab, fork.steps)
    return f"gap at the fork {at_least}{fork.gap:.3g}{steps}, at the reference's own shape"


def _steps(lab: Lab, steps: float | None) -> str:
    """Nothing in float32, whose steps are too small to be a measure; a server names no dtype: then
    steps are those of the grid that its scores lie on."""
    if steps is None or lab.dtype == "float32":
        return ""
    what = "steps of the dtype" if lab.dtype else f"steps of {lab.grid:.3g}, its scores' grid"
    return f" = {steps:.3g} {what}"


def whole_run(lab: Lab, one: Finding, forks: Sequence[Fork]) -> Finding:
    """The evidence of all near ties together, in place of that of the first row."""
    gaps = sorted(fork.gap for fork in forks if fork.gap is not None)
    steps = [fork.steps for fork in forks if fork.steps is not None]
    spread = f"{gaps[0]:.3g} to {gaps[-1]:.3g}" if gaps else "not shown"
    most = _steps(lab, max(steps)) if steps else ""
    head = (
        f"{len(forks)} of {len(lab.inquiry.tasks)} rows fork, each where two tokens nearly tie: "
        f"gaps {spread}{most.replace(' = ', ', at most ')}, at the reference's own shape"
    )
    beyond, seen = scores_beyond(lab)
    told = [f"of {seen} scores before the forks {beyond} are beyond the noise"] if seen else []
    batched = outcome(lab, "reference_batched")
    if batched.ran and batched.forks:
        told.append(
            f"the reference without speculation, {lab.rows} rows at a time, differs from itself "
            f"on {len(batched.forks)} of {batched.rows} rows"
        )
    rest = [reason for reason in one.reasons[1:] if "before it are within" not in reason]
    return replace(one, reasons=(head, *told, *rest))
