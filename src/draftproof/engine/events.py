"""The only way out of the loop for metrics, progress, transcripts and forensics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.types import FinishReason


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRound:
    """What one round did to one row.

    kv_len:      cached target tokens before the round
    fed:         tokens fed to the target (a prompt chunk, or 1 + drafted)
    drafts:      the draft tokens
    target_ids:  the target's own token after each scored position, [len(drafts) + 1]
    accepted:    accepted draft tokens, before stopping cut the block
    emitted:     tokens committed, after the cut
    """

    index: int
    slot: int
    kv_len: int
    fed: int
    drafts: tuple[int, ...]
    target_ids: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    finish_reason: FinishReason | None


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
