"""Can the two sides be trusted, and are their answers in the right place?"""

from __future__ import annotations

from draftproof.forensics.compare import common_prefix
from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import Reasons, Rule, count, hard_forks, outputs, places
from draftproof.forensics.verdicts import Cause, Kind


def reference_unstable(lab: Lab) -> Reasons | None:
    """A/A on the reference."""
    again = outcome(lab, "again")
    if again.errors:
        return (f"asked a second time, the reference failed on {again.errors} rows",)
    if again.broken or again.ends:
        apart = (*again.hard, *again.ends)
        return (f"the reference contradicts itself on {count(apart, lab)}",)
    return None


def candidate_unstable(lab: Lab) -> Reasons | None:
    """A/A on the candidate."""
    again = outcome(lab, "again_candidate")
    if again.errors:
        return (f"asked a second time, the candidate failed on {again.errors} rows",)
    if again.broken or again.ends:
        apart = (*again.hard, *again.ends)
        return (f"the candidate changes its mind between calls on {count(apart, lab)}",)
    return None


def delivered_out_of_order(lab: Lab) -> Reasons | None:
    """Every differing row holds the reference's tokens, in another order."""
    expected, found = outputs(lab)
    rows = [fork.row for fork in hard_forks(lab)]
    at = places(lab)
    same = [r for r in rows if sorted(expected[at[r]]) == sorted(found[at[r]])]
    if not rows or len(same) < len(rows) or min(len(expected[at[r]]) for r in rows) < 4:
        return None
    return (f"all {len(rows)} differing rows hold exactly the reference's tokens, re-ordered",)


def rows_exchanged(lab: Lab) -> Reasons | None:
    """A row holds another row's answer."""
    expected, found = outputs(lab)
    taken = []
    at = places(lab)
    for fork in hard_forks(lab):
        own = at[fork.row]
        for other, ids in enumerate(expected):
            shared = common_prefix(ids, found[own])
            if other != own and shared >= 4 and shared > 2 * fork.divergence.position:
                taken.append(f"row {own} begins with {shared} tokens of row {other}'s answer")
                break
    return tuple(taken[:3]) if taken and len(taken) * 2 > len(hard_forks(lab)) else None


TRUST: tuple[Rule, ...] = (
    Rule(
        name="reference contradicts itself",
        cause=Cause.UNDECIDED,
        says="the reference, asked twice, differs beyond the noise",
        holds=reference_unstable,
        missing=("a reference that repeats itself: one request at a time, no other load",),
    ),
    Rule(
        name="candidate changes its mind",
        cause=Cause.UNDECIDED,
        says="the candidate, asked twice, differs beyond the noise",
        holds=candidate_unstable,
        missing=("a candidate that repeats itself: no other load, a fixed order of requests",),
    ),
)
DELIVERY: tuple[Rule, ...] = (
    Rule(
        name="re-ordered",
        cause=Cause.BUG,
        kind=Kind.DELIVERY,
        says="the differing rows hold the reference's tokens in another order",
        holds=delivered_out_of_order,
    ),
    Rule(
        name="another row's answer",
        cause=Cause.BUG,
        kind=Kind.ROW_MIXUP,
        says="a row holds the beginning of another row's answer",
        holds=rows_exchanged,
    ),
)
