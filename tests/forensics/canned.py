"""Subjects whose answers are written down, for tests of the decisions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Counters,
    Inquiry,
    Run,
    Setup,
    Task,
    Top,
)

Respond = Callable[[Setup], Sequence[Answer]]


@dataclass(kw_only=True)
class Canned:
    """Says what `respond` says for a setup; remembers what it was asked."""

    respond: Respond
    name: str = "canned"
    abilities: frozenset[Ability] = frozenset()
    batch: int = 4
    k: int | None = 3
    dtype: str | None = None
    drafted: int | None = 10
    model: Any = None
    asked: list[Setup] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        return {"kind": "canned", "dtype": self.dtype}

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        self.asked.append(setup)
        counters = Counters(drafted=self.drafted, accepted=None, source="canned")
        return Run(answers=tuple(self.respond(setup)), counters=counters)


def answer(ids: Sequence[int], gap: float = 5.0, second: int = 99) -> Answer:
    """Every token leads by `gap` over token `second`."""
    tops = tuple(Top(ids=(i, second), values=(10.0, 10.0 - gap)) for i in ids)
    return Answer(ids=tuple(ids), tops=tops)


def inquiry(rows: int, new: int = 8) -> Inquiry:
    tasks = tuple(Task(index=i, prompt=(1, 2, 3 + i)) for i in range(rows))
    return Inquiry(tasks=tasks, max_new_tokens=new, eos_token_id=())
