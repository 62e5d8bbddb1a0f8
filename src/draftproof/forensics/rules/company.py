"""A row among others, where K = 0 cannot be asked for: right alone, and wrong in the batch.

The first step after a prompt has no earlier round behind it. Beside one made-up neighbour it says
whose length matters; where it is right beside anybody, it takes rounds in which rows accept
different numbers of drafts.
"""

from __future__ import annotations

from draftproof.forensics import pairs
from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.afresh import (
    LOCAL,
    asked_afresh,
    bug_rule,
    passes_over,
    right_alone,
)
from draftproof.forensics.rules.base import Reasons, Rule, count, hard_forks
from draftproof.forensics.verdicts import Kind


def _in_company(lab: Lab) -> bool:
    """Rows are right alone and wrong in the batch, by scores that are wrong themselves."""
    return asked_afresh(lab) is not None and right_alone(lab) and passes_over(lab) is None


def _beside(lab: Lab, name: str) -> bool:
    return pairs.off(lab, name, hard_forks(lab), outcome(lab, name))


def any_company(lab: Lab) -> Reasons | None:
    """One step beside a row that is no longer."""
    if not _in_company(lab):
        return None
    beside = [name for name in ("beside_shorter", "beside_same") if _beside(lab, name)]
    if not beside:
        return None
    return (
        "every row is right alone; its first step beside another row is off, beside one that is "
        f"{' or '.join(name.removeprefix('beside_') for name in beside)} in length as well",
        "what belongs to one row is read for another",
    )


def longer_company_positions(lab: Lab) -> Reasons | None:
    """One step beside a longer row, and the longer row's position gives the scores."""
    if not _in_company(lab) or not _beside(lab, "beside_longer"):
        return None
    told = pairs.explain(lab, hard_forks(lab), outcome(lab, "beside_longer"))
    return None if told is None else (_only_longer(), told)


def longer_company(lab: Lab) -> Reasons | None:
    """One step beside a longer row, and no position explains it."""
    if not _in_company(lab) or not _beside(lab, "beside_longer") or lab.model(None) is None:
        return None
    return _only_longer(), "the longer row's position does not explain it: padding is attended to"


def longer_company_untried(lab: Lab) -> Reasons | None:
    """One step beside a longer row, and nobody to try positions on."""
    if not _in_company(lab) or not _beside(lab, "beside_longer"):
        return None
    return _only_longer(), "either padding is attended to, or positions count it"


def _only_longer() -> str:
    return "every row is right alone, and its first step is off beside a longer row only"


def ragged_company(lab: Lab) -> Reasons | None:
    """First steps are right beside anybody: it takes rounds before."""
    if not _in_company(lab) or not outcome(lab, "beside_longer").ran:
        return None
    return (
        f"{count(hard_forks(lab), lab)} differ in the batch and none alone",
        "a first step is right beside a shorter, an equal and a longer row: it takes earlier "
        "rounds in which rows accept different numbers of drafts",
    )


COMPANY: tuple[Rule, ...] = (
    bug_rule(
        "first step beside any row",
        Kind.ROW_MIXUP,
        "the first step is off beside a row that is no longer",
        any_company,
    ),
    bug_rule(
        "first step beside a longer row, moved positions",
        Kind.POSITIONS,
        "the first step is off beside a longer row only, and its position gives the scores",
        longer_company_positions,
    ),
    bug_rule(
        "first step beside a longer row",
        Kind.PADDING_MASK,
        "the first step is off beside a longer row only, and no position explains it",
        longer_company,
    ),
    bug_rule(
        "first step beside a longer row, untried",
        Kind.UNKNOWN,
        "the first step is off beside a longer row only; no target to try positions on",
        longer_company_untried,
        missing=LOCAL,
    ),
    bug_rule(
        "rounds of a batch",
        Kind.STALE_KV,
        "right alone, right in every first step; it takes rounds of unlike rows",
        ragged_company,
    ),
)
