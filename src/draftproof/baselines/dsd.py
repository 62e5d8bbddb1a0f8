"""DSD: keeps the rejected token, drops the bonus, and cuts the cache to the batch's minimum.

Source: the description in Zhang et al., arXiv:2510.22876, of a public implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.baselines.columns import ColumnsExecutor, ColumnsMethod
from draftproof.batch import Row
from draftproof.engine.methods import Memory
from draftproof.executors.base import Executor
from draftproof.types import Drafts, RaggedTokens, Verdict
from draftproof.verifiers.base import Verifier


@dataclass(kw_only=True)
class CroppedExecutor(ColumnsExecutor):
    """FAULT: the cache of every row ends where that of the row that accepted least ends.

        a a a a A A        a accepted two drafts more than b: its last two entries (A) are
        b b b b x x        dropped and never computed again, although a goes on behind them

    The row's later tokens are scored as if those two had never been written.
    """

    def settle(self) -> None:
        live = [row for row, length in enumerate(self.lengths) if length]
        ends = [int(self.content[row].nonzero().max()) + 1 for row in live]
        self.width = min(ends, default=0)
        self.content[:, self.width :] = False

    def positions(self, tokens: RaggedTokens, content: Tensor, begins: list[int]) -> Tensor:
        offsets = torch.tensor(tokens.starts) - torch.tensor(begins)  # [R]
        columns = torch.arange(min(begins), content.shape[1])
        return (columns + offsets[:, None]).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class DsdVerifier:
    """FAULT: the first rejected draft token is emitted in place of the target's correction.

        drafts     d1 d2 d3 d4       d3 is rejected
        emitted    d1 d2 d3          and after full acceptance d1 .. d4, without a bonus

    One token in every round that rejects is then the draft's and not the target's.
    """

    inner: Verifier

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        verdict = self.inner.judge(logits, rows, drafts)
        ids = drafts.ids.to(verdict.tokens.device)
        counts = torch.tensor(drafts.counts, device=ids.device)
        tokens = verdict.tokens.clone()
        width = ids.shape[1]
        tokens[:, :width] = torch.where(ids >= 0, ids, tokens[:, :width])
        accepted = torch.minimum(verdict.accepted, (counts - 1).clamp(min=0))
        return Verdict(accepted=accepted, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class DSD(ColumnsMethod):
    """The draft's mistakes in the text, and holes in the memory of whoever was right."""

    name = "dsd"

    def executor(self, memory: Memory) -> Executor:
        return CroppedExecutor(**memory.arguments, drafted=memory.drafted)

    def verifier(self, inner: Verifier) -> Verifier:
        return DsdVerifier(inner=inner)
