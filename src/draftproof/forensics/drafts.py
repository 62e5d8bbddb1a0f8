"""Is the draft's own cache right? Its drafts are compared with what a fresh draft would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.forensics.lab import Lab
from draftproof.forensics.noise import decays
from draftproof.forensics.scoring import tops_after
from draftproof.forensics.subjects.base import Answer, Run, Task

CLEAR = 0.05  # a fresh draft must prefer another token by this much to count against the cache


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftAudit:
    """Drafts against a fresh forward of the draft model: those whose text the row then kept.

        text       a b c d          the round drafts x y z, x is accepted
        kept       a b c d x        so x and y were drafted after text that can be looked at

    rounds:   with drafts; stale: those with a draft that a fresh draft model clearly rejects
    accepted: share of accepted drafts by round, over all rows
    """

    rounds: int
    stale: int
    accepted: tuple[float, ...]

    @property
    def drifts(self) -> bool:
        """Some drafts are not the draft model's own."""
        return self.stale > 0

    def reasons(self) -> tuple[str, ...]:
        """In words."""
        told = [
            f"{self.stale} of {self.rounds} rounds hold a draft that the draft model, "
            "given the same text afresh, does not propose"
        ]
        if decays(self.accepted):
            told.append(f"acceptance falls from {self.accepted[0]:.0%} to {self.accepted[-1]:.0%}")
        return tuple(told)


def audit(lab: Lab, run: Run, dtype: str | None) -> DraftAudit | None:
    """None where the drafts are not shown, or no draft model is at hand."""
    model = draft_model(lab, dtype)
    if model is None or not any(answer.rounds for answer in run.answers):
        return None
    rounds = stale = 0
    for task, answer in zip(lab.inquiry.tasks, run.answers, strict=True):
        if not answer.error and answer.rounds:
            asked, wrong = _row(model, task, answer)
            rounds, stale = rounds + asked, stale + wrong
    return DraftAudit(rounds=rounds, stale=stale, accepted=_by_round(run.answers))


def draft_model(lab: Lab, dtype: str | None) -> Any | None:
    """The candidate's draft model in this process, if it has one."""
    cast = getattr(lab.candidate, "model_as", None)
    draft = getattr(lab.candidate, "draft", None)
    if not hasattr(draft, "forward"):
        return None
    return draft if dtype is None or cast is None else cast(dtype)[1]


def _row(model: Any, task: Task, answer: Answer) -> tuple[int, int]:
    """Rounds with drafts, and those with one that a fresh draft model clearly rejects."""
    tokens = [*task.prompt, *(t for one in answer.rounds for t in one.emitted)]
    tops, seen = tops_after(model, tokens), len(task.prompt)
    asked = wrong = 0
    for one in answer.rounds:
        after = zip(tops[seen - 1 : seen + one.accepted], one.drafts, strict=False)
        asked += bool(one.drafts)
        wrong += any(top.gap(top.ids[0], draft)[0] > CLEAR for top, draft in after)
        seen += len(one.emitted)
    return asked, wrong


def _by_round(answers: Sequence[Answer]) -> tuple[float, ...]:
    """accepted / drafted of the first, second, ... speculative round of all rows together."""
    sums: list[list[int]] = []
    for answer in answers:
        for index, one in enumerate(one for one in answer.rounds if one.drafts):
            sums += [[0, 0]] * (index + 1 - len(sums))
            sums[index] = [sums[index][0] + one.accepted, sums[index][1] + len(one.drafts)]
    return tuple(accepted / drafted for accepted, drafted in sums)
