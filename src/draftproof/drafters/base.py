"""What the loop needs of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.batch import Row
from draftproof.types import Drafts


class Drafter(Protocol):
    """Proposes up to `wanted[r]` tokens for each row; may propose fewer, or none."""

    @property
    def name(self) -> str:
        """Shown in reports."""

    def limit(self, row: Row) -> int | None:
        """Most tokens this drafter can propose for the row now; None: no limit of its own."""

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        """Draft tokens of one round, [R, max(wanted)] padded with -1."""

    def commit(self, row: Row) -> None:
        """The row's tokens of this round are final: drop whatever contradicts them."""

    def release(self, row: Row) -> None:
        """The row is finished: forget it."""
