"""Where nothing but the outputs can be had."""

from __future__ import annotations

from draftproof.forensics import positions
from draftproof.forensics.compare import common_prefix, compare
from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import (
    BLIND,
    HIGH,
    LOW,
    SCORES,
    Reasons,
    Rule,
    count,
    gaps_known,
    hard_forks,
    outputs,
    places,
)
from draftproof.forensics.verdicts import Cause, Kind


def token_missing(lab: Lab) -> Reasons | None:
    """After the fork the candidate goes on as the reference does one token later."""
    expected, found = outputs(lab)
    at, hard = places(lab), hard_forks(lab)
    skipped = 0
    for fork in hard:
        here, own = fork.divergence.position, at[fork.row]
        rest, goes_on = expected[own][here + 1 :], found[own][here:]
        skipped += common_prefix(rest, goes_on) >= min(3, len(goes_on), len(rest)) > 0
    if not hard or skipped * 2 <= len(hard):
        return None
    return (
        f"in {skipped} of {len(hard)} forks the candidate leaves out one token and goes on as the "
        "reference does: a token that was chosen and not handed on",
    )


def moved_positions(lab: Lab) -> Reasons | None:
    """Moved positions give the candidate's own tokens."""
    return positions.explain(lab, outcome(lab, "own"), positions.small_shifts)


def two_numbers_positions(lab: Lab) -> Reasons | None:
    """The paper's rule on the run itself: both low."""
    match = compare(*outputs(lab))
    if match.exact / match.rows > 0.1 or match.partial > 0.25 or lab.model(None) is not None:
        return None  # where there is a model, positions can be tried out instead
    return (
        f"exact match {match.exact}/{match.rows} and partial match {match.partial:.0%}: "
        "wrong from the first tokens",
    )


def two_numbers_drift(lab: Lab) -> Reasons | None:
    """The paper's rule on the run itself: partial high, exact low."""
    match = compare(*outputs(lab))
    if match.exact / match.rows > LOW or match.partial < HIGH or not gaps_known(lab):
        return None
    return (
        f"exact match {match.exact}/{match.rows} with partial match {match.partial:.0%}: "
        "right at first, wrong later",
    )


def beyond_noise(lab: Lab) -> Reasons | None:
    """The gap is known, and nobody would call it rounding."""
    gaps = [fork.gap for fork in hard_forks(lab) if fork.gap is not None]
    if not gaps or not gaps_known(lab):
        return None
    band = lab.noise(lab.dtype).band
    return (f"gaps at the forks reach {max(gaps):.3g}, the measured noise {band:.3g}",)


def always(lab: Lab) -> Reasons | None:
    """Nothing else spoke."""
    return (f"{count(hard_forks(lab), lab)} differ and no control says why",)


LAST: tuple[Rule, ...] = (
    Rule(
        name="a token is missing",
        cause=Cause.BUG,
        kind=Kind.CORRECTION,
        says="no controls: after the fork the candidate goes on one token ahead",
        holds=token_missing,
        missing=BLIND,
    ),
    Rule(
        name="moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="no controls: moved positions give the candidate's tokens",
        holds=moved_positions,
        missing=BLIND,
    ),
    Rule(
        name="both numbers low",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="no controls: exact and partial match both very low (the paper's rule)",
        holds=two_numbers_positions,
        missing=BLIND,
    ),
    Rule(
        name="partial high, exact low",
        cause=Cause.BUG,
        kind=Kind.STALE_KV,
        says="no controls: partial match high, exact low, gaps beyond dispute (the paper's rule)",
        holds=two_numbers_drift,
        missing=BLIND,
    ),
    Rule(
        name="beyond the noise",
        cause=Cause.BUG,
        kind=Kind.UNKNOWN,
        says="no controls, but gaps that nobody calls rounding",
        holds=beyond_noise,
        missing=BLIND,
    ),
    Rule(
        name="unexplained",
        cause=Cause.UNDECIDED,
        says="rows differ and no evidence decides",
        holds=always,
        missing=(*SCORES, *BLIND),
    ),
)
