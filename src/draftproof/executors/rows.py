"""The default executor: row-anchored KV cache on a transformers model, no realignment ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.errors import InvariantError
from draftproof.executors.contents import SlotContents
from draftproof.executors.layout import RowLayout
from draftproof.executors.memory import JUNK, CachedRows
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class RowsExecutor(CachedRows):
    """Rows of one model, each anchored at slot 0 of its own stretch of the cache.

    contents: what the slots hold, of running, released and not yet written rows alike
    """

    contents: SlotContents = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.contents = SlotContents(self.rows, self.slots, self.device)

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V]."""
        self.refuse_misfit(tokens)
        layout = RowLayout.plan(tokens, self.shapes)
        slots = layout.positions(self.device)
        ids, positions = (_fill(part, layout.total) for part in (tokens.ids, slots))
        kept = tokens.kept_indices
        keep = torch.tensor(self.shapes.fill(kept), dtype=torch.int64, device=self.device)
        self.cache.layout = layout
        self.contents.begin_write(tokens)
        logits = self.model.forward(ids, positions, self.cache, layout, keep)
        self.contents.end_write(tokens, layout.rows(self.device), slots)
        self.grow(tokens)
        return logits[: len(kept)]

    def truncate(self, row: int, length: int) -> None:
        """Roll back by shortening: what lies behind is stale and never read."""
        super().truncate(row, length)
        self.contents.truncate(row, length)

    def longest_prefix(self, tokens: Sequence[int], row: int) -> tuple[int, int]:
        """The row whose slots begin with the most of `tokens`, and how many; best `row` itself."""
        return self.contents.longest_prefix(tokens, row)

    def copy_prefix(self, source: int, row: int, tokens: Sequence[int]) -> None:
        """Let the empty `row` begin with these tokens, which the slots of `source` hold.

        `source` may be running, released, or the row itself. Raises InvariantError when the row is
        in use, or `source` holds anything else.
        """
        if self.lengths[row]:
            raise InvariantError(f"row {row}: {self.lengths[row]} tokens cached, expected none")
        self.contents.copy(source, row, tokens)
        if source != row:
            for tensor in (*self.cache.keys, *self.cache.values):
                tensor[row, :, : len(tokens)] = tensor[source, :, : len(tokens)]
        self.lengths[row] = len(tokens)

    def check(self) -> None:
        """Lengths fit the allocation, and everything that is cached is known."""
        super().check()
        for row, (length, known) in enumerate(zip(self.lengths, self.contents.known, strict=True)):
            if length and length != known:
                raise InvariantError(f"row {row}: {length} tokens cached, {known} of them known")

    def poison(self) -> None:
        """Overwrite every slot that holds nothing known: outputs must not change (debug, tests).

        What a released row has left behind may still be copied, so it stays: debugging takes the
        same decisions as production.
        """
        for tensor in (*self.cache.keys, *self.cache.values):
            for row, known in enumerate(self.contents.known):
                tensor[row, :, known:] = JUNK


def _fill(values: Tensor, total: int) -> Tensor:
    """Repeat the last entry until there are `total`."""
    extra = total - len(values)
    return values if extra == 0 else torch.cat([values, values[-1:].expand(extra)])
