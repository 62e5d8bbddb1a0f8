"""The default executor: row-anchored KV cache on a transformers model, no realignment ever."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.executors.layout import RowLayout
from draftproof.executors.memory import JUNK, CachedRows
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class RowsExecutor(CachedRows):
    """Rows of one model, each anchored at slot 0 of its own stretch of the cache."""

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
        return logits[: len(kept)]

    def poison(self) -> None:
        """Overwrite every stale slot with junk: outputs must not change (debug and tests)."""
        for tensor in (*self.cache.keys, *self.cache.values):
            for row, length in enumerate(self.lengths):
                tensor[row, :, length:] = JUNK


def _fill(values: Tensor, total: int) -> Tensor:
    """Repeat the last entry until there are `total`."""
    extra = total - len(values)
    return values if extra == 0 else torch.cat([values, values[-1:].expand(extra)])
