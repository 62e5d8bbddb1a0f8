"""Rows that begin alike are read once: the others copy what the first one has cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftproof.batch import Row

WORTH_COPYING = 16  # tokens; fewer are read in no time
WORTH_WAITING = 64  # tokens; a row that waits for another one to read them loses a round


@runtime_checkable
class Copying(Protocol):
    """A memory that knows what its slots hold, and whose rows can begin with another row's."""

    lengths: list[int]

    def longest_prefix(self, tokens: Sequence[int], row: int) -> tuple[int, int]:
        """The row whose slots begin with the most of `tokens`, and how many; best `row` itself."""

    def copy_prefix(self, source: int, row: int, tokens: Sequence[int]) -> None:
        """Let the empty `row` begin with these tokens of `source`, which must hold them."""


@dataclass(frozen=True, kw_only=True)
class Prefixes:
    """Lets a new row of one memory begin with what some row's slots already hold.

    What a slot holds is the memory's own knowledge, whoever owns the slot: a running row, one that
    was released, or one that has not written yet. A token's keys and values depend on the tokens
    before it alone, so a copy is what the row would have computed: bit for bit in the exact tier,
    as equal as another chunking is elsewhere.
    """

    memory: Copying

    def waits(self, row: Row, reading: Iterable[Row]) -> bool:
        """Whether an earlier one of the rows that are `reading` will have what this one needs."""
        return any(self._will_have(other, row) for other in reading)

    def copy(self, row: Row) -> int:
        """Tokens that an empty row now begins with; 0 where no row has enough of them."""
        # the last token is fed in any case: its logits choose the next one
        source, count = self.memory.longest_prefix(row.tokens[:-1], row.slot)
        if count < WORTH_COPYING:
            return 0
        self.memory.copy_prefix(source, row.slot, row.tokens[:count])
        return count

    def _will_have(self, other: Row, row: Row) -> bool:
        if other.waits or other.paused or other.request.index >= row.request.index:
            return False
        common = min(_common(row.tokens, other.tokens), len(row.tokens) - 1, len(other.tokens) - 1)
        return common >= WORTH_WAITING and self.memory.lengths[other.slot] < common


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
