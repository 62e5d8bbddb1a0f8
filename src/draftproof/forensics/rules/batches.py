"""What it takes a batch for: neighbours of other lengths, rows that accept different numbers."""

from __future__ import annotations

from draftproof.forensics import positions
from draftproof.forensics.controls import outcome
from draftproof.forensics.forks import Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import Reasons, Rule
from draftproof.forensics.verdicts import Cause, Kind


def _needs_a_batch(lab: Lab) -> Outcome | None:
    """The plain batched run where it is broken and plain single rows are not."""
    batched = outcome(lab, "plain_batched")
    return batched if batched.broken and outcome(lab, "plain").clean else None


def any_neighbour(lab: Lab) -> Reasons | None:
    """A neighbour that is no longer than the row is enough."""
    if _needs_a_batch(lab) is None:
        return None
    shorter, same = outcome(lab, "shorter"), outcome(lab, "same")
    if not shorter.broken and not same.broken:
        return None
    which = "a shorter neighbour" if shorter.broken else "a neighbour of the same length"
    return (
        "plain decoding agrees at B = 1 and differs in the batch",
        f"{which} changes a row: what belongs to one row is read for another",
    )


def longer_neighbour_positions(lab: Lab) -> Reasons | None:
    """Only padded rows, and moved positions give their tokens."""
    batched = _needs_a_batch(lab)
    if batched is None or not outcome(lab, "longer").broken:
        return None
    told = positions.explain(lab, batched, positions.padding)
    return told and (
        "plain decoding agrees at B = 1; in a batch only a longer neighbour changes a row",
        *told,
    )


def longer_neighbour(lab: Lab) -> Reasons | None:
    """Only padded rows, and no position explains them."""
    if _needs_a_batch(lab) is None or not outcome(lab, "longer").broken:
        return None
    return (
        "plain decoding agrees at B = 1; in a batch only a longer neighbour changes a row",
        "no shift of positions gives the candidate's tokens: padding is attended to",
    )


NEIGHBOURS: tuple[Rule, ...] = (
    Rule(
        name="any neighbour",
        cause=Cause.BUG,
        kind=Kind.ROW_MIXUP,
        says="K = 0 differs in a batch, with a neighbour that is no longer than the row",
        holds=any_neighbour,
    ),
    Rule(
        name="longer neighbour, moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="K = 0 differs beside a longer neighbour only, and moved positions give the tokens",
        holds=longer_neighbour_positions,
    ),
    Rule(
        name="longer neighbour",
        cause=Cause.BUG,
        kind=Kind.PADDING_MASK,
        says="K = 0 differs beside a longer neighbour only, and no positions explain it",
        holds=longer_neighbour,
    ),
)
