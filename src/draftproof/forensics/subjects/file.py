"""Recorded ids as a subject: one JSON object per line.

{"ids": [12, 7, 2]}                          or "token_ids": in the order of the prompts
{"ids": [12, 7, 2], "category": "qa", "finish_reason": "eos"}
{"index": 3, "token_ids": [12, 7, 2]}        in any order, as `draftproof generate` writes them
{"error": "timed out"}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from draftproof.errors import InputError
from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Inquiry,
    Run,
    Setup,
    Task,
    failed,
)


@dataclass(kw_only=True)
class FileSubject:
    """Answers recorded elsewhere. It can be asked nothing new.

    answers: by the number of the prompt: its `index`, or the place of the line where none has one

    Raises InputError when a line is not what the format says, or when two are of one prompt.
    """

    name: str
    path: Path
    answers: dict[int, Answer] = field(init=False, repr=False)
    indexed: bool = field(init=False, default=False)

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    batch: ClassVar[int] = 1
    k: ClassVar[int | None] = None
    model: ClassVar[Any] = None

    def __post_init__(self) -> None:
        lines = self.path.read_text(encoding="utf-8-sig").split("\n")
        numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
        read = [(n, *_line(self.path, n, line)) for n, line in numbered]
        self.indexed = any(index is not None for _, index, _ in read)
        self.answers = self._by_index(read) if self.indexed else _by_place(read)

    def _by_index(self, read: Sequence[tuple[int, int | None, Answer]]) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        for number, index, answer in read:
            if index is None:
                raise InputError(f"{self.path}, line {number}: no index, and other lines have one")
            if index in found:
                raise InputError(f"{self.path}, line {number}: a second line with index {index}")
            found[index] = answer
        return found

    def settings(self) -> dict[str, Any]:
        """Where it came from."""
        return {"kind": "file", "path": str(self.path), "rows": len(self.answers)}

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """The recorded answers, whatever is asked. Without indices another number of lines is an
        error of every row; with them, a prompt that no line answers is an error of that row, and
        an answer to no prompt one of every row."""
        tasks = inquiry.tasks
        places = {task.index if self.indexed else n: task for n, task in enumerate(tasks)}
        strange = sorted(self.answers.keys() - places.keys())
        if self.indexed and strange:
            count = len(tasks)
            return failed(tasks, f"{self.path} has index {strange[0]}, there are {count} prompts")
        if not self.indexed and len(self.answers) != len(tasks):
            count = len(self.answers)
            return failed(tasks, f"{count} answers in {self.path}, one expected per prompt")
        return Run(answers=tuple(self._answer(place, task) for place, task in places.items()))

    def _answer(self, place: int, task: Task) -> Answer:
        missing = Answer(error=f"no line of {self.path} has index {task.index}")
        return self.answers.get(place, missing)


def _by_place(read: Sequence[tuple[int, int | None, Answer]]) -> dict[int, Answer]:
    return {place: answer for place, (_, _, answer) in enumerate(read)}


def _line(path: Path, number: int, line: str) -> tuple[int | None, Answer]:
    """The prompt's number, where the line says it, and the answer."""
    try:
        row = json.loads(line)
        index = row.get("index")
        if index is not None and (type(index) is not int or index < 0):
            raise ValueError(f"index {index!r}")
        if row.get("error"):
            return index, Answer(error=str(row["error"]))
        ids = row["ids"] if "ids" in row else row["token_ids"]
        if not isinstance(ids, list) or any(type(one) is not int for one in ids):
            raise TypeError("ids are whole numbers in a list")
        return index, Answer(ids=tuple(ids), finish_reason=row.get("finish_reason"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f'{path}, line {number}: expected {{"ids": [1, 2, 3]}}, got {line[:60]!r} ({error})'
        ) from error
