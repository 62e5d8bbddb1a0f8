"""One row's first step beside one made-up neighbour: whose length matters?

The row's text up to shortly before its fork is
a new prompt, and two tokens are asked for: the prefill's, and that of one step in which nothing of
an earlier round is left. So nobody needs to be told to do without drafts.

    row        p p p p p a b > c d       d: the step's token
    neighbour  q q q > .                 half as long, as long, or a little longer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftproof.forensics import midway
from draftproof.forensics.forks import Fork, Outcome, cannot
from draftproof.forensics.hypotheses import CLOSER, PLACES
from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import Start
from draftproof.forensics.scoring import distances
from draftproof.forensics.subjects.base import Ability, Answer, Run, Setup, Task

ROWS, NEW = 3, 2
NAMES = ("beside_shorter", "beside_same", "beside_longer")
EXTRA = (4, 7)  # tokens by which the longer neighbours are longer


def lengths(name: str, own: int) -> tuple[int, ...]:
    """Of the neighbours that a control puts beside a row of `own` tokens."""
    if name == "beside_longer":
        return tuple(own + extra for extra in EXTRA)
    return (own,) if name == "beside_same" else (max(1, own // 2),)


def starts_of(lab: Lab, name: str, forks: Sequence[Fork]) -> list[tuple[Start, int]]:
    """Where each row is asked from, and the length of its neighbour."""
    at = {task.index: row for row, task in enumerate(lab.inquiry.tasks)}
    found = []
    for fork in forks[:ROWS]:
        start = Start(row=at[fork.row], after=max(0, fork.divergence.position - 1))
        own = len(lab.inquiry.tasks[start.row].prompt) + start.after
        found += [(start, length) for length in lengths(name, own)]
    return found


def run(lab: Lab, name: str, forks: Sequence[Fork]) -> Outcome:
    """Each row beside each of its neighbours, two requests at a time."""
    chosen = starts_of(lab, name, forks)
    if not midway.can_start(lab.candidate, lab) or not chosen:
        return cannot(name, "the candidate takes no new prompts, or none are known as ids")
    if lab.inquiry.min_new_tokens:
        return cannot(name, "min_new_tokens means another thing in the middle of a row")
    starts = [start for start, _ in chosen]
    asked = midway.question(lab, starts, NEW, lab.clean_expected.ids)
    answers = [
        _beside(lab, replace(asked, tasks=(task, _neighbour(lab, start, length))))
        for task, (start, length) in zip(asked.tasks, chosen, strict=True)
    ]
    expected = midway.told(lab.clean_expected, starts, NEW)
    return lab.outcome(name, asked.tasks, expected, Run(answers=tuple(answers)))


def _beside(lab: Lab, asked: Any) -> Answer:
    k = 0 if Ability.K in lab.candidate.abilities else None
    return lab.candidate.run(asked, Setup(batch=2, k=k, dtype=lab.cast)).answers[0]


def _neighbour(lab: Lab, start: Start, length: int) -> Task:
    """Another row's prompt over and over, so that its text is nobody's own."""
    others = [task for row, task in enumerate(lab.inquiry.tasks) if row != start.row]
    source = others[0].prompt if others else lab.inquiry.tasks[start.row].prompt[::-1]
    return Task(index=-1, prompt=tuple(source[n % len(source)] for n in range(length)))


def off(lab: Lab, name: str, forks: Sequence[Fork], control: Outcome) -> list[bool]:
    """Whether the first steps of a control are wrong, in their token or in their scores."""
    starts = [start for start, _ in starts_of(lab, name, forks)]
    flags = [one.off(1) for one in midway.seen(lab, starts, NEW, control)]
    return [flag for flag in flags if flag is not None]


def explain(lab: Lab, forks: Sequence[Fork], control: Outcome) -> str | None:
    """Whether the step's scores are the target's own at the longer neighbour's position."""
    model = lab.model(lab.clean)
    if model is None or control.run is None:
        return None
    chosen = starts_of(lab, "beside_longer", forks)
    known = [
        (start, length, answer)
        for (start, length), answer in zip(chosen, control.run.answers, strict=True)
        if not answer.error and len(answer.tops) == len(answer.ids) == NEW and answer.tops[1].ids
    ]
    if len(known) < PLACES:
        return None
    far = [_distances(lab, model, *one) for one in known]
    there, right = (sorted(one)[len(one) // 2] for one in zip(*far, strict=True))
    if right == 0 or CLOSER * there > right:
        return None
    return (
        f"the scores of the step are the target's own at the longer row's position (typically "
        f"{there:.2g} off; {right:.2g} at the right one)"
    )


def _distances(lab: Lab, model: Any, start: Start, length: int, answer: Answer) -> list[float]:
    """How far the step's gap is from the target's at the neighbour's position, and at its own."""
    prompt = lab.inquiry.tasks[start.row].prompt
    text = lab.clean_expected.answers[start.row].ids[: start.after]
    tokens = [*prompt, *text, answer.ids[0]]
    own = len(tokens) - 1
    return distances(
        model, tokens, [[*range(own), place] for place in (length, own)], answer.tops[1]
    )
