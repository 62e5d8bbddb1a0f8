"""Right alone and right without drafts: it takes rows that accept different numbers."""

from __future__ import annotations

from draftproof.forensics.compare import compare
from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import HIGH, LOW, Reasons, Rule, outputs
from draftproof.forensics.verdicts import Cause, Kind


def ragged_only(lab: Lab) -> Reasons | None:
    """Right alone, right without drafts: it takes rows that accept different numbers."""
    batched = outcome(lab, "plain_batched")
    if not outcome(lab, "single").clean or not batched.clean or batched.stand_in:
        return None
    if not lab.candidate.k or not outcome(lab, "own").broken:
        return None
    return (
        "every row agrees alone (B = 1), and in the batch without drafts (K = 0)",
        "it takes a batch in which rows accept different numbers of drafts",
    )


def ragged_low(lab: Lab) -> Reasons | None:
    """The paper's rule: both numbers low."""
    told, match = ragged_only(lab), compare(*outputs(lab))
    if told is None or match.partial > HIGH or match.exact / match.rows > LOW:
        return None
    return (*told, f"exact match and partial match ({match.partial:.0%}) are both low")


RAGGED: tuple[Rule, ...] = (
    Rule(
        name="ragged batch, both numbers low",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="B = 1 agrees, K = 0 agrees; ragged acceptance breaks it from the start",
        holds=ragged_low,
    ),
    Rule(
        name="ragged batch",
        cause=Cause.BUG,
        kind=Kind.STALE_KV,
        says="B = 1 agrees, K = 0 agrees; ragged acceptance breaks it later",
        holds=ragged_only,
    ),
)
