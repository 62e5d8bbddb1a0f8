"""Greedy verification: accept a draft token when it is the target's own argmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.processing import Positions, best, forbid_early_eos
from draftproof.types import Drafts, Verdict


def pad_rows(flat: Tensor, counts: Sequence[int], width: int, fill: int) -> Tensor:
    """Lay ragged rows out as a rectangle, [sum(counts)] -> [R, width].

    counts 2, 1, 3 :  a a | b | c c c   ->   a a .
                                             b . .
                                             c c c
    """
    if all(count == width for count in counts):
        return flat.view(len(counts), width)
    lengths = torch.tensor(counts, device=flat.device)
    live = torch.arange(width, device=flat.device) < lengths[:, None]  # [R, width]
    return torch.full(live.shape, fill, dtype=flat.dtype, device=flat.device).masked_scatter(
        live, flat
    )


def longest_match(chosen: Tensor, drafts: Drafts, scores: Tensor | None = None) -> Verdict:
    """Accept each row's longest draft prefix that equals the chosen tokens, [sum(K + 1)] int64."""
    width = drafts.ids.shape[1]
    tokens = pad_rows(chosen, [count + 1 for count in drafts.counts], width + 1, fill=-2)
    match = drafts.ids.to(tokens.device) == tokens[:, :width]  # [R, K_max]; -1 equals no token
    accepted = match.to(torch.int64).cumprod(1).sum(1)  # [R]
    return Verdict(accepted=accepted, tokens=tokens, scores=scores)


@dataclass(frozen=True, kw_only=True)
class GreedyVerifier:
    """The longest draft prefix that equals the target's argmax, then the target's own token.

        drafts   d1 d2 d3 d4        counts = K
        target   t0 t1 t2 t3 t4     argmax after the last known token, d1, ..., d4
        match     1  1  0  1        d1 == t0, d2 == t1, d3 != t2
        accepted = 2, emitted = t0 t1 t2: two accepted tokens and the correction

    Ties go to the lowest id, as torch.argmax and `generate` have it.
    """

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        if any(row.request.settings.min_new_tokens > row.generated for row in rows):
            positions = Positions.of_block(rows, drafts.ids, drafts.counts)
            logits = forbid_early_eos(logits, positions)
        return longest_match(best(logits), drafts)
