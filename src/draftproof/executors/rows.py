"""The default executor: row-anchored KV cache on a transformers model, no realignment ever."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.errors import InvariantError
from draftproof.executors.layout import RowLayout
from draftproof.executors.memory import JUNK, CachedRows
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class RowsExecutor(CachedRows):
    """Rows of one model, each anchored at slot 0 of its own stretch of the cache.

    left: tokens of released rows that are still there
    """

    left: dict[int, int] = field(default_factory=dict, init=False)

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V]."""
        self.refuse_misfit(tokens)
        layout = RowLayout.plan(tokens, self.shapes)
        positions = layout.positions(self.device)
        ids, positions = (_fill(part, layout.total) for part in (tokens.ids, positions))
        kept = tokens.kept_indices
        keep = torch.tensor(self.shapes.fill(kept), dtype=torch.int64, device=self.device)
        self.cache.layout = layout
        logits = self.model.forward(ids, positions, self.cache, layout, keep)
        self.grow(tokens)
        for row in tokens.rows:
            self.left.pop(row, None)
        return logits[: len(kept)]

    def copy_prefix(self, source: int, row: int, count: int) -> None:
        """Let the empty `row` begin with the first `count` tokens that `source` has cached.

        `source` may be a row that was released, or the row itself, as long as nothing was written
        there since. Raises InvariantError when the row is in use, or `source` has less.
        """
        if self.lengths[row]:
            raise InvariantError(f"row {row}: {self.lengths[row]} tokens cached, expected none")
        if count > self.readable(source):
            found = self.readable(source)
            raise InvariantError(f"row {source}: {found} tokens to copy, expected {count}")
        if source != row:
            for tensor in (*self.cache.keys, *self.cache.values):
                tensor[row, :, :count] = tensor[source, :, :count]
        self.lengths[row] = count
        self.left.pop(row, None)

    def readable(self, row: int) -> int:
        """Tokens that a row has cached, or that a released one has left behind."""
        return self.lengths[row] or self.left.get(row, 0)

    def release(self, row: int) -> None:
        self.left[row] = self.lengths[row]
        super().release(row)

    def poison(self) -> None:
        """Overwrite every stale slot with junk: outputs must not change (debug and tests)."""
        self.left.clear()
        for tensor in (*self.cache.keys, *self.cache.values):
            for row, length in enumerate(self.lengths):
                tensor[row, :, length:] = JUNK


def _fill(values: Tensor, total: int) -> Tensor:
    """Repeat the last entry until there are `total`."""
    extra = total - len(values)
    return values if extra == 0 else torch.cat([values, values[-1:].expand(extra)])
