"""Recorded ids as a subject: one JSON object per line, in the order of the prompts.

{"ids": [12, 7, 2]}                          or "token_ids"
{"ids": [12, 7, 2], "category": "qa", "finish_reason": "eos"}
{"error": "timed out"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from draftproof.errors import InputError
from draftproof.forensics.subjects.base import OWN, Ability, Answer, Inquiry, Run, Setup, failed


@dataclass(kw_only=True)
class FileSubject:
    """Answers recorded elsewhere. It can be asked nothing new.

    Raises InputError when a line is not what the format says.
    """

    name: str
    path: Path

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    batch: ClassVar[int] = 1
    k: ClassVar[int | None] = None
    model: ClassVar[Any] = None

    def __post_init__(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip()]
        self.answers = tuple(_answer(self.path, n, line) for n, line in numbered)

    def settings(self) -> dict[str, Any]:
        """Where it came from."""
        return {"kind": "file", "path": str(self.path), "rows": len(self.answers)}

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """The recorded answers, whatever is asked; another number of rows is an error of all."""
        if len(self.answers) != len(inquiry.tasks):
            count = len(self.answers)
            return failed(inquiry.tasks, f"{count} answers in {self.path}, one expected per prompt")
        return Run(answers=self.answers)


def _answer(path: Path, number: int, line: str) -> Answer:
    try:
        row = json.loads(line)
        if "error" in row and row["error"]:
            return Answer(error=str(row["error"]))
        ids = row["ids"] if "ids" in row else row["token_ids"]
        return Answer(ids=tuple(int(i) for i in ids), finish_reason=row.get("finish_reason"))
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f'{path}, line {number}: expected {{"ids": [1, 2, 3]}}, got {line[:60]!r} ({error})'
        ) from error
