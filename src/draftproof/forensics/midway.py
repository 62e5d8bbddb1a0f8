"""Asking from the middle of a row: the row's own text so far, as a fresh prompt.

    asked at first    p p p > a b c d e f     p: prompt, >: from here on it is generated
    from 3            p p p a b c > d e f     the same text, and no earlier round left anything

The text is the reference's, so what must follow is known. Whoever takes prompts can be asked so: a
server too, which can be handed neither drafts nor another K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof.forensics.forks import Fork, Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.noise import gap_change
from draftproof.forensics.subjects.base import (
    Ability,
    Answer,
    Inquiry,
    Run,
    Setup,
    Subject,
    Top,
)

ROWS, MOST = 6, 32  # rows that are asked about; starts in all


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


def question(lab: Lab, starts: Sequence[Start], new: int, text: Sequence[Sequence[int]]) -> Inquiry:
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


# -- what is asked about forks ---------------------------------------------------------------------


def around(lab: Lab, forks: Sequence[Fork]) -> list[Start]:
    """At each fork and up to a block before it; then elsewhere in any row, as room is left.

    A start at the fork shows the prefill alone, one token before it a single step, and earlier
    ones put the fork at every offset of a block.
    """
    at = {task.index: row for row, task in enumerate(lab.inquiry.tasks)}
    places = [(at[fork.row], fork.divergence.position) for fork in forks[:ROWS]]
    least = lab.inquiry.min_new_tokens
    near = [
        Start(row=row, after=place - back)
        for back in range(lab.block + 1)
        for row, place in places
        if place - back >= least
    ]
    lengths = [len(answer.ids) for answer in lab.clean_expected.answers[:ROWS]]
    spread = [
        Start(row=row, after=after)
        for after in range(least, lab.inquiry.max_new_tokens, 3)
        for row, length in enumerate(lengths)
        if after + 1 < length
    ]
    return list(dict.fromkeys([*near, *spread]))[:MOST]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the candidate said from one start.

        index   0           1            2 ...
                prefill     one step     the rest of the first block, or what follows it

    wrong: index of the first token that is another one and no near tie
    moved: per token up to there, whether the candidate's scores are further from the reference's
           than arithmetic brings them; None: not shown
    """

    start: Start
    wrong: int | None
    moved: tuple[bool | None, ...]

    def off(self, index: int) -> bool | None:
        """Whether token or scores at an index are wrong; None where nothing was seen."""
        if self.wrong == index:
            return True
        return self.scores_off(index)

    def scores_off(self, index: int) -> bool | None:
        """Whether the scores at an index are wrong, whatever token went out."""
        return self.moved[index] if index < len(self.moved) else None

    def not_own(self, index: int) -> bool:
        """Whether a wrong token went out although the scores at it are right."""
        return self.wrong == index and self.scores_off(index) is False


def seen(lab: Lab, starts: Sequence[Start], new: int, control: Outcome) -> list[Seen]:
    """The answers of a control that asked from these starts."""
    assert control.run is not None
    expected = told(lab.clean_expected, starts, new)
    forks = {fork.row: fork for fork in control.forks}
    rows = zip(starts, expected.answers, control.run.answers, strict=True)
    return [
        _seen(lab, start, a, b, forks.get(place))
        for place, (start, a, b) in enumerate(rows)
        if not b.error
    ]


def _seen(lab: Lab, start: Start, right: Answer, found: Answer, fork: Fork | None) -> Seen:
    same = len(right.ids) if fork is None else fork.divergence.position + 1
    pairs = list(zip(right.tops, found.tops, strict=False))[:same]
    return Seen(
        start=start,
        wrong=fork.divergence.position if fork is not None and fork.hard else None,
        moved=tuple(moved(lab, a, b) for a, b in pairs),
    )


def moved(lab: Lab, right: Top, found: Top) -> bool | None:
    """Whether scores of the same place are further apart than arithmetic brings them."""
    change = gap_change(right, found)
    return None if change is None else lab.beyond(change, right)
