"""What the loop needs of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from draftproof.batch import Row
from draftproof.phases import RoundTimer
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


@runtime_checkable
class CachingDrafter(Protocol):
    """What a drafter has beside that if it runs a model with a cache of its own."""

    timer: RoundTimer  # told of every forward, as Phase.DRAFT

    def lag(self, row: Row) -> int:
        """Tokens of the row that its cache lacks, fed before it can draft."""
