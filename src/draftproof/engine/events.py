"""The only way out of the loop for metrics, progress, transcripts and forensics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.types import RowRound

__all__ = ["Observer", "RoundEvent", "RowRound"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundEvent:
    """One round of the whole batch."""

    number: int
    rows: tuple[RowRound, ...]
    waiting: int


class Observer(Protocol):
    """Anything that listens; built only when at least one observer is there."""

    def on_round(self, event: RoundEvent) -> None:
        """Called once after each round, in order."""
