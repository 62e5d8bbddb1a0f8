"""Plain decoding: the same loop with nothing proposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.batch import Row
from draftproof.types import Drafts


@dataclass(frozen=True, kw_only=True)
class NoDrafter:
    """Proposes nothing, so that a round emits one token per row."""

    name: str = "none"

    def limit(self, row: Row) -> int | None:
        return 0

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        return Drafts(ids=torch.empty(len(rows), 0, dtype=torch.int64), counts=[0] * len(rows))

    def commit(self, row: Row) -> None:
        return

    def release(self, row: Row) -> None:
        return
