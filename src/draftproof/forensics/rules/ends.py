"""Rows that agree until one side ends."""

from __future__ import annotations

from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import Reasons, Rule, count, hard_forks, outputs, places
from draftproof.forensics.verdicts import Cause, Kind


def _only_ends(lab: Lab) -> bool:
    forks = hard_forks(lab)
    return bool(forks) and all(fork.overshoot is not None for fork in forks)


def _overshoots(lab: Lab) -> str:
    sizes = sorted({fork.overshoot or 0 for fork in hard_forks(lab)})
    return ", ".join(f"{size:+d}" for size in sizes)


def ends_inside_a_block(lab: Lab) -> Reasons | None:
    """Only the ends differ, and not without speculation."""
    if not _only_ends(lab):
        return None
    plain = outcome(lab, "plain")
    head = (
        f"{count(hard_forks(lab), lab)} agree until one side ends; lengths differ by "
        f"{_overshoots(lab)} tokens"
    )
    if plain.clean and not plain.stand_in:
        return head, "without speculation (K = 0, B = 1) every row ends where the reference does"
    if plain.ran and not plain.stand_in:
        return None
    return (head, "no rule of the settings ends rows like that") if _irregular(lab) else None


def _irregular(lab: Lab) -> bool:
    """Overshoots differ within a block, or rows that end for the same reason do not overshoot."""
    forks, limit = hard_forks(lab), lab.inquiry.max_new_tokens
    sizes = {fork.overshoot or 0 for fork in forks}
    if min(sizes) <= 0:
        return False
    expected, found = outputs(lab)
    at = places(lab)
    late = {len(expected[at[fork.row]]) >= limit for fork in forks}  # by length, or earlier
    equal = {len(a) >= limit for a, b in zip(expected, found, strict=True) if a == b}
    block = lab.candidate.k
    return bool(late & equal) or (len(sizes) > 1 and (block is None or max(sizes) <= block))


def other_rules_of_ending(lab: Lab) -> Reasons | None:
    """Only the ends differ, and without speculation as well: the sides were asked differently."""
    if not _only_ends(lab):
        return None
    plain = outcome(lab, "plain")
    known = plain.ran and not plain.stand_in
    where = "also without speculation" if known else "by one rule in all of them"
    return (
        f"{count(hard_forks(lab), lab)} agree until one side ends; lengths differ by "
        f"{_overshoots(lab)} tokens, {where}",
        "make eos, stop strings and the length limit the same on both sides",
    )


ENDS: tuple[Rule, ...] = (
    Rule(
        name="ends inside a block",
        cause=Cause.BUG,
        kind=Kind.ENDING,
        says="rows agree until one side ends; with K = 0 they end alike",
        holds=ends_inside_a_block,
    ),
    Rule(
        name="other rules of ending",
        cause=Cause.HARNESS,
        says="rows agree until one side ends, with K = 0 as well",
        holds=other_rules_of_ending,
    ),
)
