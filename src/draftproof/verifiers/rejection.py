"""Speculative sampling: accept a draft with probability min(1, p / q), else draw from the rest.

Leviathan et al. 2023, "Fast inference from transformers via speculative decoding"; Chen et al.
2023, "Accelerating large language model decoding with speculative sampling".

p, q: [n, V] float32, the distributions of target and draft at n positions; q is what the draft was
really drawn from, and 0 where there is no draft.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.processing import race


def accept_or_replace(
    p: Tensor, q: Tensor, drafts: Tensor, uniform: Tensor, times: Tensor
) -> Tensor:
    """The token at each position, [n] int64, distributed as p whatever q.

    drafts:   [n] int64, -1 where there is none
    uniform:  [n] float32 in [0, 1)
    times:    [n, V] float32, standard exponential
    """
    accepted = is_accepted(p, q, drafts, uniform)
    return torch.where(accepted, drafts, race(remainder(p, q), times))


def is_accepted(p: Tensor, q: Tensor, drafts: Tensor, uniform: Tensor) -> Tensor:
    """Whether uniform < p(d) / q(d), [n] bool; never for a missing draft or an id >= V."""
    index = drafts.clamp(0, p.shape[-1] - 1)[:, None]
    real = (drafts >= 0) & (drafts < p.shape[-1])
    # strict, so that a token which p excludes is not accepted even at uniform = 0
    return real & (uniform * q.gather(1, index)[:, 0] < p.gather(1, index)[:, 0])


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0), [n, V], not normalised: what a token is drawn from without an accepted draft.

    It is p itself where there is no draft. Only where p = q up to rounding nothing is left; a draft
    is then rejected with probability 0, and p stands in.
    """
    rest = (p - q).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)
