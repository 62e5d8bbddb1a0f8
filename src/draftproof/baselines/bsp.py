"""BSP: rejected entries become masked holes, and positions count them.

Source: the description in Zhang et al., arXiv:2510.22876, of the batched decoding of Su et al.,
arXiv:2310.18813.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.baselines.columns import ColumnsExecutor, ColumnsMethod
from draftproof.engine.methods import Memory
from draftproof.executors.base import Executor
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class HoledExecutor(ColumnsExecutor):
    """FAULT: a token's position is its column, so that it jumps by one for every hole before it.

        column     0 1 2 3 4 5 6 7
        row        a a a x x A A A       three cached, two rejected, three fed
        position   0 1 2     5 6 7       expected 3 4 5

    The mask is right: holes are never read. But the model was never trained on text with gaps, and
    the distances between tokens grow with every rejection. This breaks invariant I2.
    """

    def positions(self, tokens: RaggedTokens, content: Tensor, begins: list[int]) -> Tensor:
        first = content.int().argmax(1)[:, None]  # [R, 1]
        columns = torch.arange(min(begins), content.shape[1])
        limit = (self.model.max_positions or content.shape[1]) - 1
        return (columns - first).clamp(min=0, max=limit)


@dataclass(frozen=True, kw_only=True)
class BSP(ColumnsMethod):
    """Holes in the cache and gaps in the positions."""

    name = "bsp"

    def executor(self, memory: Memory) -> Executor:
        return HoledExecutor(**memory.arguments, drafted=memory.drafted)
