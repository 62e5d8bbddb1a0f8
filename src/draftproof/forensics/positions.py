"""Asks the target itself whether wrong positions explain the forks of a control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add

from draftproof.forensics.forks import Outcome
from draftproof.forensics.hypotheses import (
    TELLING,
    Explanation,
    explain_positions,
    shifted,
    strided,
)
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import Task

Places = Iterator[tuple[str, list[int]]]
Guess = Callable[[Lab, Task, int], Places]  # hypotheses for a task with so many generated tokens
ROWS = 6  # forks that are asked about


def small_shifts(lab: Lab, task: Task, count: int) -> Places:
    """Off by one, or by a few."""
    return shifted(len(task.prompt), count, [1, -1, 2, -2, 3, 4])


def padding(lab: Lab, task: Task, count: int) -> Places:
    """Counted from the width of the batch."""
    lengths = {len(other.prompt) for other in lab.inquiry.tasks}
    own = len(task.prompt)
    return shifted(own, count, sorted({length - own for length in lengths if length > own}))


def strides(lab: Lab, task: Task, count: int) -> Places:
    """Every round advances by K + 1, although all K drafts were rejected."""
    return strided(len(task.prompt), count, emitted=1, fed=(lab.candidate.k or 0) + 1)


def explain(lab: Lab, control: Outcome, guess: Guess) -> tuple[str, ...] | None:
    """The reasons, where most of the forks asked about are convincingly explained."""
    model = lab.model(lab.clean if lab.clean else None)
    if model is None or control.run is None:
        return None
    told = [_one(lab, model, control, row, guess) for row in _rows(control)]
    answers = [one for one in told if one is not None]
    convinced = [one for one in answers if one.convincing]
    if not answers or 2 * len(convinced) <= len(answers):
        return None
    best = max(convinced, key=lambda one: (one.by_scores, one.told - one.truth))
    head = (
        f"at {len(convinced)} of {len(answers)} forks the target itself writes the candidate's "
        f"tokens with {best.name}"
    )
    if best.by_scores:
        return (
            head,
            f"the candidate's own gaps are those of the target there (typically {best.off:.2g} "
            f"off; {best.off_right:.2g} at the right positions)",
        )
    whole = reduce(add, convinced)
    if whole.telling < TELLING:
        return None
    return (
        head,
        f"of {whole.telling} tokens at which positions matter these give {whole.told}, "
        f"the right ones {whole.truth}",
    )


def _rows(control: Outcome) -> list[int]:
    return [fork.row for fork in control.hard][:ROWS]


def _one(lab: Lab, model: object, control: Outcome, row: int, guess: Guess) -> Explanation | None:
    place = next(i for i, task in enumerate(lab.inquiry.tasks) if task.index == row)
    assert control.run is not None
    task, answer = lab.inquiry.tasks[place], control.run.answers[place]
    fork = next(fork for fork in control.hard if fork.row == row)
    guesses = guess(lab, task, len(answer.ids))
    return explain_positions(model, task.prompt, answer, fork, guesses)
