"""What a rule is, and what all of them look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.forensics.controls import hard_forks, rerun
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.verdicts import Cause, Kind

__all__ = [
    "BLIND",
    "HIGH",
    "LOW",
    "SCORES",
    "Reasons",
    "Rule",
    "count",
    "gaps_known",
    "hard_forks",
    "outputs",
    "own_choice",
    "places",
]

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


def own_choice(lab: Lab) -> tuple[int, int]:
    """At how many of the hard forks the candidate's own scores choose the reference's token, by
    more than noise: what went out is not what it chose."""
    hard, clean = hard_forks(lab), rerun(lab)
    own = lab.found if clean is None else clean.run
    at, passed_over = places(lab), 0
    band = lab.noise(lab.clean or lab.dtype).band
    for fork in hard:
        tops = () if own is None else own.answers[at[fork.row]].tops
        here, right = fork.divergence.position, fork.divergence
        shown = here < len(tops) and tops[here].ids
        if shown and right.found is not None and right.expected is not None:
            first = tops[here].ids[0] == right.expected
            passed_over += first and tops[here].gap(right.expected, right.found)[0] > band
    return passed_over, len(hard)
