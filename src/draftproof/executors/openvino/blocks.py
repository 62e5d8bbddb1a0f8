"""Which blocks of a paged KV cache belong to which row. Numbers only: no model, no tensor."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.errors import InvariantError


@dataclass(kw_only=True)
class BlockPool:
    """`blocks` blocks of `block_size` tokens, shared by `rows` rows.

        row 0, 70 tokens   table 0 1 4     token t lies in block table[t // block_size],
        row 1, 40 tokens   table 2 3       slot t % block_size
        free               5 6 7

    The lowest free block is handed out first, so that memory that was never used stays untouched.
    """

    blocks: int
    block_size: int
    rows: int
    tables: list[list[int]] = field(init=False)
    free: list[int] = field(init=False)  # a heap

    def __post_init__(self) -> None:
        self.tables = [[] for _ in range(self.rows)]
        self.free = list(range(self.blocks))

    def needed(self, length: int) -> int:
        """Blocks that hold `length` tokens."""
        return -(-length // self.block_size)

    def grow(self, row: int, length: int) -> None:
        """Give a row what it lacks for `length` tokens.

        Raises InvariantError, and changes nothing, when the pool has too few free blocks.
        """
        lacking = self.needed(length) - len(self.tables[row])
        if lacking > len(self.free):
            raise InvariantError(
                f"row {row}: {length} tokens need {lacking} more blocks of {self.block_size}, "
                f"{len(self.free)} are free"
            )
        for _ in range(lacking):
            self.tables[row].append(heapq.heappop(self.free))

    def trim(self, row: int, length: int) -> None:
        """Take back a row's blocks behind its first `length` tokens."""
        table, kept = self.tables[row], self.needed(length)
        for block in table[kept:]:
            heapq.heappush(self.free, block)
        del table[kept:]

    def check(self, lengths: Sequence[int]) -> None:
        """Every block has one owner, and every row the blocks that its length needs.

        Raises InvariantError naming the block or the row.
        """
        owners: dict[int, str] = {}
        named = [("the free list", self.free)]
        named += [(f"row {row}", table) for row, table in enumerate(self.tables)]
        for owner, held in named:
            for block in held:
                if block in owners:
                    raise InvariantError(f"block {block}: held by {owners[block]} and by {owner}")
                owners[block] = owner
        lost = sorted(set(range(self.blocks)) ^ owners.keys())
        if lost:
            raise InvariantError(f"blocks {lost}: lost, or not of this pool")
        for row, (table, length) in enumerate(zip(self.tables, lengths, strict=True)):
            if len(table) != self.needed(length):
                raise InvariantError(
                    f"row {row}: {len(table)} blocks for {length} tokens, "
                    f"expected {self.needed(length)}"
                )
