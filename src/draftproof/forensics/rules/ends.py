"""Rows that agree until one side ends."""

from __future__ import annotations

from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import Reasons, Rule, count, hard_forks
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
    if plain.clean:
        return (
            f"{count(hard_forks(lab), lab)} agree until one side ends; lengths differ by "
            f"{_overshoots(lab)} tokens",
            "without speculation (K = 0, B = 1) every row ends where the reference does",
        )
    if not plain.ran and _varies(lab):
        return (
            f"rows agree until one side ends, and overshoot by {_overshoots(lab)} tokens: "
            "a rule of the settings would give the same number everywhere",
        )
    return None


def _varies(lab: Lab) -> bool:
    sizes = {fork.overshoot or 0 for fork in hard_forks(lab)}
    longest = lab.candidate.k
    return len(sizes) > 1 and min(sizes) > 0 and (longest is None or max(sizes) <= longest)


def other_rules_of_ending(lab: Lab) -> Reasons | None:
    """Only the ends differ, and without speculation as well: the sides were asked differently."""
    if not _only_ends(lab):
        return None
    plain = outcome(lab, "plain")
    where = "also without speculation" if plain.ran else "everywhere by the same rule"
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
