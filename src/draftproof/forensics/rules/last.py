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
    own_choice,
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


def not_its_choice(lab: Lab) -> Reasons | None:
    """At the forks its own scores choose the reference's token, and another went out."""
    passed_over, forks = own_choice(lab)
    if not forks or passed_over * 2 <= forks:
        return None
    return (
        f"at {passed_over} of {forks} forks the candidate's own scores prefer the reference's "
        "token, and the candidate emits another one: a draft that nobody verified",
    )


def only_in_a_batch(lab: Lab) -> Reasons | None:
    """Alone every row is right, and nothing can be asked of the candidate without drafts."""
    if lab.candidate.batch < 2 or not outcome(lab, "single").clean:
        return None
    if not hard_forks(lab) or not gaps_known(lab):
        return None
    return (
        f"{count(hard_forks(lab), lab)} differ in the batch and none alone (B = 1)",
        "positions, mask or cache of a batch of unlike rows; K = 0 on the candidate would tell",
    )


def moved_positions(lab: Lab) -> Reasons | None:
    """Moved positions give the candidate's own tokens."""
    return positions.explain(lab, outcome(lab, "own"), positions.small_shifts)


def two_numbers_positions(lab: Lab) -> Reasons | None:
    """The paper's rule on the run itself: both low."""
    match = compare(*outputs(lab))
    if match.exact / match.rows > 0.1 or match.partial > 0.25 or lab.model(None) is not None:
        return None  # where there is a model, positions can be tried out instead
    first = sum(fork.divergence.position <= 1 for fork in hard_forks(lab))
    if 2 * first < match.rows:
        return None  # what a rejection leaves behind cannot show before the first block has passed
    return (
        f"exact match {match.exact}/{match.rows} and partial match {match.partial:.0%}: "
        f"{first} rows are wrong in the first token after the prompt's own",
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


MISSING: tuple[Rule, ...] = (
    Rule(
        name="a token is missing",
        cause=Cause.BUG,
        kind=Kind.CORRECTION,
        says="no controls: after the fork the candidate goes on one token ahead",
        holds=token_missing,
        missing=BLIND,
    ),
)
LAST: tuple[Rule, ...] = (
    Rule(
        name="not its own choice",
        cause=Cause.BUG,
        kind=Kind.UNVERIFIED,
        says="no controls: the candidate's own scores choose another token than it emits",
        holds=not_its_choice,
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
        name="only in a batch",
        cause=Cause.BUG,
        kind=Kind.UNKNOWN,
        says="no controls: B = 1 agrees, the batch differs beyond dispute",
        holds=only_in_a_batch,
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
