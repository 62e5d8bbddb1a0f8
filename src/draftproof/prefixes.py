"""Rows that begin alike are read once: the others copy what the first one has cached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from draftproof.batch import Row

WORTH_COPYING = 16  # tokens; fewer are read in no time
WORTH_WAITING = 64  # tokens; a row that waits for another one to read them loses a round


@runtime_checkable
class Copying(Protocol):
    """A memory whose rows can begin with another row's content."""

    lengths: list[int]

    def readable(self, row: int) -> int:
        """Tokens that a row has cached, or that a released one has left behind."""

    def copy_prefix(self, source: int, row: int, count: int) -> None:
        """Let the empty `row` begin with the first `count` tokens of `source`."""


@dataclass(kw_only=True)
class Prefixes:
    """Finds for a new row of one memory the row that has most of its beginning already.

    What a finished row has left behind serves as well, until another row is written there. A
    token's keys and values depend on the tokens before it alone, so a copy is what the row would
    have computed: bit for bit in the exact tier, as equal as another chunking is elsewhere.
    """

    memory: Copying
    _left: dict[int, Sequence[int]] = field(default_factory=dict, init=False)  # tokens by slot

    def waits(self, row: Row, reading: Iterable[Row]) -> bool:
        """Whether an earlier one of the rows that are `reading` will have what this one needs."""
        return any(self._will_have(other, row) for other in reading)

    def copy(self, row: Row, others: Collection[Row]) -> int:
        """Tokens that an empty row now begins with; 0 where nobody has enough of them."""
        live = {other.slot: other.tokens for other in others if other is not row}
        shared = {
            slot: self._shared(row, slot, tokens) for slot, tokens in {**self._left, **live}.items()
        }
        source = max(shared, key=shared.__getitem__, default=row.slot)
        count = shared.get(source, 0)
        self._left.pop(row.slot, None)  # written over from now on
        if count < WORTH_COPYING:
            return 0
        self.memory.copy_prefix(source, row.slot, count)
        return count

    def remember(self, row: Row) -> None:
        """A row is about to be released; its content stays where it is."""
        self._left[row.slot] = row.tokens

    def _shared(self, row: Row, slot: int, tokens: Sequence[int]) -> int:
        """Tokens at the beginning of `row` that are cached in a slot."""
        # the last token known is not cached: where it belongs there may be a rejected draft
        true = min(self.memory.readable(slot), len(tokens) - 1)
        return min(_common(row.tokens, tokens), true, len(row.tokens) - 1)

    def _will_have(self, other: Row, row: Row) -> bool:
        if other.waits or other.request.index >= row.request.index:
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
