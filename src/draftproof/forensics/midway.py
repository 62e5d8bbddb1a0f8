"""Asking from the middle of a row: the row's own text so far, as a fresh prompt.

    asked at first    p p p > a b c d e f     p: prompt, >: from here on it is generated
    from 3            p p p a b c > d e f     the same text, and no earlier round left anything

The text is the reference's, so what must follow is known. Whoever takes prompts can be asked so: a
server too, which can be handed neither drafts nor another K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof.forensics.forks import Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import Ability, Answer, Inquiry, Run, Setup, Subject, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where to ask from.

    row:   place of the task among the tasks
    after: generated tokens that go into the prompt
    """

    row: int
    after: int


def can_start(side: Subject, lab: Lab) -> bool:
    """Whether a side takes new prompts, and the prompts are known as ids."""
    return Ability.PROMPTS in side.abilities and all(task.prompt for task in lab.inquiry.tasks)


def question(
    lab: Lab, starts: Sequence[Start], new: int, text: Sequence[Sequence[int]]
) -> Inquiry:
    """One task per start, in their order; text: the generated ids of every row."""
    tasks = tuple(
        replace(
            lab.inquiry.tasks[one.row],
            index=place,
            prompt=(*lab.inquiry.tasks[one.row].prompt, *text[one.row][: one.after]),
            text=None,
        )
        for place, one in enumerate(starts)
    )
    return replace(lab.inquiry, tasks=tasks, max_new_tokens=new, min_new_tokens=0)


def told(expected: Run, starts: Sequence[Start], new: int) -> Run:
    """What must follow each start, as far as the reference's own row goes."""
    return Run(
        answers=tuple(
            _slice(expected.answers[one.row], one.after, one.after + new) for one in starts
        )
    )


def _slice(answer: Answer, first: int, end: int) -> Answer:
    return replace(answer, ids=answer.ids[first:end], tops=answer.tops[first:end], rounds=())


def ask(lab: Lab, name: str, starts: Sequence[Start], new: int) -> Outcome:
    """The candidate from each start, one at a time, in the arithmetic of the controls.

    Rows of the outcome are places in `starts`. Where the reference's own row ends, so does what
    can be compared.
    """
    expected = told(lab.clean_expected, starts, new)
    asked = question(lab, starts, new, lab.clean_expected.ids)
    run = lab.candidate.run(asked, Setup(batch=1, dtype=lab.cast))
    cut = [
        replace(found, ids=found.ids[: len(right.ids)], tops=found.tops[: len(right.ids)])
        for found, right in zip(run.answers, expected.answers, strict=True)
    ]
    return lab.outcome(name, asked.tasks, expected, replace(run, answers=tuple(cut)))
