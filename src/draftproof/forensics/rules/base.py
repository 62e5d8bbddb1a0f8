"""What a rule is, and what all of them look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.forensics.controls import rerun
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.verdicts import Cause, Kind

Reasons = tuple[str, ...]
LOW, HIGH = 0.5, 0.6  # of the paper's two numbers: partial match below, or above
BLIND: Reasons = ("controls that change K or hand in known drafts: the candidate takes neither",)
SCORES: Reasons = ("scores of the likeliest tokens at the fork (logits or logprobs)",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One line of the table.

    says:  the pattern in words, for the documentation and the report
    holds: the reasons, or None
    """

    name: str
    cause: Cause
    says: str
    holds: Callable[[Lab], Reasons | None]
    kind: Kind | None = None
    missing: Reasons = ()


def hard_forks(lab: Lab) -> tuple[Fork, ...]:
    """Forks of the run as asked that rounding does not explain; else those of the clean rerun."""
    forks = lab.forks(lab.expected, lab.found, lab.dtype)
    clean = rerun(lab)
    return tuple(fork for fork in forks if fork.hard) if clean is None else clean.hard


def outputs(lab: Lab) -> tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]]:
    """Ids of both sides where the hard forks are."""
    clean = rerun(lab)
    if clean is not None and clean.run is not None:
        return lab.clean_expected.ids, clean.run.ids
    return lab.expected.ids, lab.found.ids


def count(forks: Sequence[Fork], lab: Lab) -> str:
    return f"{len(forks)} of {len(lab.inquiry.tasks)} rows"


def places(lab: Lab) -> dict[int, int]:
    return {task.index: place for place, task in enumerate(lab.inquiry.tasks)}


def gaps_known(lab: Lab) -> bool:
    hard = hard_forks(lab)
    gaps = [fork.gap for fork in hard if fork.gap is not None]
    return len(gaps) * 2 >= len(hard) > 0 and max(gaps, default=0) > lab.max_gap
