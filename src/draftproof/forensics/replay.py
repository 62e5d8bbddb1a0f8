"""Run one row of a bundle again and show the round in which it went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.engine.events import RowRound
from draftproof.errors import InputError
from draftproof.forensics.bundle import Bundle
from draftproof.forensics.compare import common_prefix
from draftproof.forensics.subjects.base import Answer, Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One round of the row, and what the reference has at the same place."""

    number: int
    kv_len: int
    drafts: tuple[int, ...]
    target_ids: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def wrong(self) -> bool:
        """Whether this round emitted something else than the reference."""
        return self.emitted != self.expected

    @property
    def first_wrong(self) -> int | None:
        """Offset of the first wrong token in the block."""
        return common_prefix(self.emitted, self.expected) if self.wrong else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A row, round by round where its subject shows rounds, else its tokens alone.

    expected, found: ids of the reference and of the candidate
    fresh:      run again just now; False: the recorded transcript, because nothing can be rerun
    reproduced: whether it came out as recorded; None where nothing was rerun
    """

    row: int
    steps: tuple[Step, ...]
    expected: tuple[int, ...]
    found: tuple[int, ...]
    fresh: bool
    reproduced: bool | None
    fork: int | None

    @property
    def culprit(self) -> Step | None:
        """The first wrong round."""
        return next((step for step in self.steps if step.wrong), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        steps = [
            {
                "round": step.number,
                "kv_len": step.kv_len,
                "drafts": list(step.drafts),
                "target": list(step.target_ids),
                "accepted": step.accepted,
                "emitted": list(step.emitted),
                "expected": list(step.expected),
                "wrong_at": step.first_wrong,
            }
            for step in self.steps
        ]
        return {
            "row": self.row,
            "reference": list(self.expected),
            "candidate": list(self.found),
            "fork": self.fork,
            "fresh": self.fresh,
            "reproduced": self.reproduced,
            "steps": steps,
        }


def worst_row(bundle: Bundle) -> int:
    """The row that forks first; the first row where none does."""
    rows = [row for row in bundle.report["rows"] if row["fork"] is not None]
    return int(min(rows, key=lambda row: row["fork"]["position"])["index"]) if rows else 0


def replay(bundle: Bundle, row: int, subject: Subject | None) -> Replay:
    """Run the row again, in its batch, and lay it beside the reference.

    subject: the candidate, made anew; None shows what was recorded
    Raises InputError for a row that is not there, or to which the subject gives no answer.
    """
    places = {task.index: place for place, task in enumerate(bundle.inquiry.tasks)}
    if row not in places:
        raise InputError(f"the bundle has no row {row}; it has {min(places)} to {max(places)}")
    expected = bundle.expected.answers[places[row]]
    recorded = bundle.found.answers[places[row]]
    answer = recorded if subject is None else subject.run(bundle.inquiry).answers[places[row]]
    for side, one in (("reference", expected), ("candidate", answer)):
        if one.error is not None:
            raise InputError(f"row {row}: the {side} gave no answer: {one.error}")
    return Replay(
        row=row,
        steps=tuple(_steps(expected, answer.rounds)),
        expected=expected.ids,
        found=answer.ids,
        fresh=subject is not None,
        reproduced=None if subject is None else answer.ids == recorded.ids,
        fork=None if expected.ids == answer.ids else common_prefix(expected.ids, answer.ids),
    )


def _steps(expected: Answer, rounds: Sequence[RowRound]) -> list[Step]:
    steps, seen = [], 0
    for number, one in enumerate(rounds):
        # where the row has already gone astray there is nothing to compare with
        steps.append(
            Step(
                number=number,
                kv_len=one.kv_len,
                drafts=one.drafts,
                target_ids=one.target_ids,
                accepted=one.accepted,
                emitted=one.emitted,
                expected=expected.ids[seen : seen + len(one.emitted)],
            )
        )
        seen += len(one.emitted)
    return steps
