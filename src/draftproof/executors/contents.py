"""Which token ids the slots of a cache hold, known by the memory itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.errors import InvariantError
from draftproof.types import RaggedTokens


@dataclass(slots=True)
class SlotContents:
    """The ids written to each row, and how far they are what the cache holds.

        ids     a a a a A D D      fed to row 0, drafts included
        known   5                  after D D were rejected: what lies behind may be overwritten

    It changes with every write and says nothing of who owns a row: a row that was given to another
    request and not written yet still holds what the request before left there.

    rows, slots:  of the cache
    """

    rows: int
    slots: int
    device: torch.device
    ids: Tensor = field(init=False)  # [rows, slots] int64
    known: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = torch.full((self.rows, self.slots), -1, device=self.device)
        self.known = [0] * self.rows

    def begin_write(self, tokens: RaggedTokens) -> None:
        """Before a forward, which may fail half way: what it writes to is no longer known."""
        for row, start in zip(tokens.rows, tokens.starts, strict=True):
            self.known[row] = min(self.known[row], start)

    def end_write(self, tokens: RaggedTokens, rows: Tensor, slots: Tensor) -> None:
        """After a forward; rows, slots [N] say where each token went."""
        self.ids[rows, slots] = tokens.ids
        for row, start, count in zip(tokens.rows, tokens.starts, tokens.counts, strict=True):
            self.known[row] = start + count

    def truncate(self, row: int, length: int) -> None:
        """The row goes on after `length` tokens."""
        self.known[row] = min(self.known[row], length)

    def longest_prefix(self, tokens: Sequence[int], preferred: int) -> tuple[int, int]:
        """The row that begins with the most of `tokens`, and how many; of equals the preferred."""
        wanted = torch.tensor(tokens[: self.slots], dtype=torch.int64, device=self.device)
        equal = self.ids[:, : len(wanted)] == wanted  # [rows, n]
        counts = [
            min(count, known) for count, known in zip(_leading(equal), self.known, strict=True)
        ]
        best = max(range(self.rows), key=lambda row: (counts[row], row == preferred))
        return best, counts[best]

    def copy(self, source: int, row: int, tokens: Sequence[int]) -> None:
        """`row` now begins with these tokens of `source`.

        Raises InvariantError when that is not what `source` holds.
        """
        count = len(tokens)
        found = self.ids[source, : min(count, self.known[source])].tolist()
        if found != list(tokens):
            place = next(
                (i for i, (a, b) in enumerate(zip(found, tokens, strict=False)) if a != b),
                len(found),
            )
            raise InvariantError(
                f"row {source} does not hold what is to be copied to row {row}: {count} tokens "
                f"wanted, other ones from slot {place} on"
            )
        self.ids[row, :count] = self.ids[source, :count]
        self.known[row] = count


def _leading(equal: Tensor) -> list[int]:
    """How many places are true before the first that is not, [rows, n] bool -> rows."""
    counts: list[int] = equal.int().cumprod(1).sum(1).tolist()
    return counts
