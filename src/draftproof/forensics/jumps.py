"""Do positions that jump explain a row? The target itself is asked, token by token.

A rollback that takes back the cache and not the positions leaves a gap in them after every
rejection. Nobody outside knows where the rejections were; so at each token every jump that a round
can cause is tried, and the one that gives the candidate's own scores is kept.

    token      a  b  c  d  e
    right      7  8  9 10 11
    jumped     7  8 11 12 14      after b two drafts were rejected, after d one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.forensics.forks import Outcome
from draftproof.forensics.hypotheses import CLOSER, PLACES
from draftproof.forensics.lab import Lab
from draftproof.forensics.scoring import distances
from draftproof.forensics.subjects.base import Answer

ROWS, LOOK = 3, 24  # rows that are followed, tokens of each


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """One row, from its first jump on: distances of the candidate's gaps from the target's.

    jumped: at the positions that were followed; right: at the right ones
    """

    jumps: int
    jumped: tuple[float, ...]
    right: tuple[float, ...]


def explain(lab: Lab, control: Outcome) -> str | None:
    """The reason, where jumps bring the target's gaps at least CLOSER times nearer."""
    model = lab.model(lab.clean)
    if model is None or control.run is None:
        return None
    rows = {fork.row for fork in control.hard[:ROWS]}
    trails = [
        follow(model, task.prompt, answer, lab.block - 1)
        for task, answer in zip(lab.inquiry.tasks, control.run.answers, strict=True)
        if task.index in rows and not answer.error and len(answer.tops) == len(answer.ids)
    ]
    jumped = sorted(value for one in trails for value in one.jumped)
    right = sorted(value for one in trails for value in one.right)
    if len(jumped) < PLACES:
        return None
    there, here = jumped[len(jumped) // 2], right[len(right) // 2]
    if here == 0 or CLOSER * there > here:
        return None
    count = sum(one.jumps for one in trails)
    return (
        f"with positions that jump {count} times by up to {lab.block - 1}, as if rejected drafts "
        f"still counted, the target gives the candidate's own gaps (typically {there:.2g} off; "
        f"{here:.2g} at the right positions)"
    )


def follow(model: Any, prompt: Sequence[int], answer: Answer, most: int) -> Trail:
    """The jumps, each of 0 to `most` positions, that give a row's own scores best."""
    tokens, places = list(prompt), list(range(len(prompt)))
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    jumps, jumped, right = 0, [], []
    for token, top in list(zip(answer.ids, answer.tops[1:], strict=False))[:LOOK]:
        tokens.append(token)
        # the right positions, and those that a round can have left behind
        tried = [list(range(len(tokens)))]
        tried += [[*places, places[-1] + 1 + jump] for jump in range(most + 1)]
        if len(top.ids) < 2 or tried[-1][-1] >= limit:
            break
        here, *others = distances(model, tokens, tried, top)
        jump = others.index(min(others))
        places, jumps = tried[1 + jump], jumps + (jump > 0)
        if jumps:
            jumped.append(others[jump])
            right.append(here)
    return Trail(jumps=jumps, jumped=tuple(jumped), right=tuple(right))
