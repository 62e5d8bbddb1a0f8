"""Drafters that follow a script, so that every acceptance count is reached on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.batch import Row
from draftproof.types import Drafts


@dataclass(frozen=True, kw_only=True)
class ScriptedDrafter:
    """Proposes the reference's own continuation with a wrong token at a chosen offset.

        right        r0 r1 r2 r3     what the target will write
        wrong_at 2   r0 r1 XX r3     accepted 2, the token after the mistake is right again
        wrong_at 4   r0 r1 r2 r3     accepted 4 of 4

    continuations: the target's new tokens by request index; drafts end where they end
    wrong_at:      offset of the wrong token in every round, one for all requests or one for each
    wrong:         the wrong token itself (may lie beyond the vocabulary); None: 0, or 1 for 0
    limits:        most drafts per round by request index, None for no limit
    """

    continuations: Sequence[Sequence[int]]
    wrong_at: int | Sequence[int]
    wrong: int | None = None
    limits: Sequence[int] | None = None
    name: str = "scripted"

    def limit(self, row: Row) -> int | None:
        return None if self.limits is None else self.limits[row.request.index]

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        scripts = [self._script(row, count) for row, count in zip(rows, wanted, strict=True)]
        width = max(map(len, scripts), default=0)
        ids = [script + [-1] * (width - len(script)) for script in scripts]
        table = torch.tensor(ids, dtype=torch.int64).reshape(len(rows), width)
        return Drafts(ids=table, counts=[len(script) for script in scripts])

    def _script(self, row: Row, count: int) -> list[int]:
        right = list(self.continuations[row.request.index][row.generated :][:count])
        index = row.request.index
        offset = self.wrong_at if isinstance(self.wrong_at, int) else self.wrong_at[index]
        if offset < len(right):
            right[offset] = self._mistake(right[offset])
        return right

    def _mistake(self, right: int) -> int:
        if self.wrong is not None:
            return self.wrong
        return 0 if right else 1

    def commit(self, row: Row) -> None:
        return

    def release(self, row: Row) -> None:
        return
