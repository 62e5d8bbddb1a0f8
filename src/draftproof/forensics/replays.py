"""Does a server draft what it would draft afresh? Its own counters say, round by round.

A draft model whose cache has drifted leaves the output right and drafts badly. Nobody outside sees
the drafts, but a round can be asked for alone: the text up to it as a new prompt, and just enough
new tokens. So the rounds of a row can be gone through one by one, each with a fresh cache, and
what they accept must be what the row accepted as a whole.

    row       a | b c d | e | f g h |      7 tokens after the first: accepted 2 + 0 + 2 = 4
    afresh    a > b c d                    2, so the next round begins after d
              a b c d > e                  0
              a b c d e > f g h            2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import can_start
from draftproof.forensics.subjects.base import Counters, Inquiry, Setup, Task

ROWS, LOOK = 3, 64  # rows that are gone through, tokens of each


@dataclass(frozen=True, kw_only=True, slots=True)
class Replays:
    """Accepted drafts per row: in the row as a whole, and in its rounds one by one."""

    whole: tuple[int, ...]
    afresh: tuple[int, ...]

    @property
    def drifts(self) -> bool:
        """Some row did not accept what its rounds do."""
        return self.whole != self.afresh

    def reasons(self) -> tuple[str, ...]:
        """In words."""
        rows = list(zip(self.whole, self.afresh, strict=True))
        differing = [f"{a} for {b}" for a, b in rows if a != b]
        return (
            f"{len(differing)} of {len(rows)} rows accept other numbers of drafts as a whole than "
            f"round by round, each given the same text as a new prompt: {', '.join(differing)}",
        )


class _Unclear(Exception):
    """The counters do not tell rounds apart."""


def replays(lab: Lab) -> Replays | None:
    """None where counters or arithmetic are not such that equal means equal.

    Only in float32: elsewhere a draft model has near ties of its own.
    """
    k, counters = lab.candidate.k, lab.found.counters
    if not k or not lab.clean or not can_start(lab.candidate, lab):
        return None
    if not counters.drafted or counters.accepted is None or lab.inquiry.min_new_tokens:
        return None
    rows = [
        (task, answer.ids[:LOOK])
        for task, answer in zip(lab.inquiry.tasks, lab.clean_expected.answers, strict=True)
        # a row that ends by itself may end in the middle of a round
        if not answer.error and len(answer.ids) == lab.inquiry.max_new_tokens > 2
    ][:ROWS]
    try:
        if rows and _ask(lab, rows[0][0], (), 2).drafted:
            return None  # it drafts beyond what it may emit: how much of that counts, nobody knows
        pairs = _until_they_differ(lab, rows, k)
    except _Unclear:
        return None
    return Replays(whole=tuple(a for a, _ in pairs), afresh=tuple(b for _, b in pairs))


def _until_they_differ(
    lab: Lab, rows: Sequence[tuple[Task, Sequence[int]]], k: int
) -> list[tuple[int, int]]:
    """Accepted as a whole and round by round; one row that differs says enough."""
    pairs: list[tuple[int, int]] = []
    for task, ids in rows:
        pairs.append((_whole(lab, task, ids), _afresh(lab, task, ids, k)))
        if pairs[-1][0] != pairs[-1][1]:
            break
    return pairs


def _ask(lab: Lab, task: Task, text: Sequence[int], new: int) -> Counters:
    """What the candidate counts while it adds `new` tokens to a prompt and the text after it."""
    prompt = (*task.prompt, *text)
    asked: Inquiry = replace(
        lab.inquiry, tasks=(replace(task, index=0, prompt=prompt, text=None),), max_new_tokens=new
    )
    run = lab.candidate.run(asked, Setup(batch=1, dtype=lab.cast))
    if run.answers[0].error or run.counters.accepted is None or run.counters.drafted is None:
        raise _Unclear
    return run.counters


def _whole(lab: Lab, task: Task, ids: Sequence[int]) -> int:
    """Accepted by the row as a whole; asked twice, because counters may lag behind."""
    first, again = (_ask(lab, task, (), len(ids)).accepted for _ in range(2))
    if first is None or first != again:
        raise _Unclear
    return first


def _afresh(lab: Lab, task: Task, ids: Sequence[int], k: int) -> int:
    """The sum over its rounds, each one asked for alone."""
    emitted, total = 1, 0
    while emitted < len(ids):
        left = len(ids) - emitted
        accepted = _round(lab, task, ids[: emitted - 1], min(k, left - 1))
        total += accepted
        emitted += accepted + 1
    return total


def _round(lab: Lab, task: Task, text: Sequence[int], most: int) -> int:
    """Accepted in the first round after the next token, with at most `most` drafts.

    The room for drafts grows by one as long as all are accepted; then no second round is asked for.
    """
    for drafts in range(1, most + 1):
        accepted = _ask(lab, task, text, drafts + 2).accepted or 0
        if accepted < drafts:
            return accepted
    return most
