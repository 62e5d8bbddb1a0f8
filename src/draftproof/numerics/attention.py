"""Attention of flat ragged rows: grouped queries without `repeat_kv`, softcap, sinks, windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from draftproof.numerics.shapes import Shapes


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a layer asks of its attention, apart from the tensors."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def fold(query: Tensor, kv_heads: int) -> Tensor:
    """[R, heads, Q, D] -> [R, kv_heads, group * Q, D]: a key head's query heads become queries.

    Keys and values then need no `repeat_kv`; query head h reads key head h // group.
    """
    rows, heads, length, dim = query.shape
    return query.reshape(rows, kv_heads, heads // kv_heads * length, dim)


def additive_mask(
    positions: Tensor, view: int, window: int | None, group: int, dtype: torch.dtype
) -> Tensor:
    """Mask of `group * Q` folded queries over `view` slots, [R, 1, group * Q, view].

    positions: [R, Q] int64. A query at position p sees slots p - window + 1 .. p, and since token t
    of a row sits in slot t, nothing else is needed to keep rows and stale slots apart.
    """
    slots = torch.arange(view, device=positions.device)
    hidden = slots > positions[..., None]  # [R, Q, view]
    if window is not None:
        hidden |= slots <= positions[..., None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, -torch.inf).repeat(1, group, 1)[:, None]


def attend(
    shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> Tensor:
    """[R, heads, Q, D] over [R, kv_heads, view, D] -> [R, heads, Q, D].

    mask: [R or 1, 1, group * Q, view], additive, or None when every query sees every slot.
    """
    rows, heads, length, _ = query.shape
    folded = fold(query, keys.shape[1])
    if shape.softcap is None and shape.sinks is None:
        out = functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask, scale=shape.scaling
        )
    else:
        out = _explicit(shape, folded, keys, values, mask, length)
    return out.reshape(rows, heads, length, values.shape[-1])


def _explicit(
    shape: AttentionShape,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    length: int,
) -> Tensor:
    """The same in single operations, for what the fused kernel cannot do; softmax in float32."""
    scores = torch.matmul(query, keys.transpose(2, 3)) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if mask is not None:
        scores = scores + mask
    if shape.sinks is not None:
        # one extra score per query head that takes weight and carries no value
        sinks = shape.sinks.to(scores.dtype).repeat_interleave(length)
        sinks = sinks.reshape(1, keys.shape[1], -1, 1).expand(scores.shape[0], -1, -1, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights[..., : keys.shape[2]], values)


def attend_standard(
    shape: AttentionShape,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    shapes: Shapes | None,
) -> Tensor:
    """Ordinary attention for transformers' own loop, [B, Q, heads, D].

    mask: [B, 1, Q, L], boolean (True = visible) or additive; None means causal, aligned at the end.
    """
    group = query.shape[1] // keys.shape[1]
    length, total = query.shape[2], keys.shape[2]
    if mask is None:
        positions = torch.arange(total - length, total, device=query.device)[None]
        mask = additive_mask(positions, total, shape.window, group, query.dtype)
    else:
        if mask.dtype is torch.bool:
            zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
            mask = zeros.masked_fill_(~mask, -torch.inf)
        mask = mask[..., :total].repeat(1, 1, group, 1)
    return attend(shape, query, keys, values, mask).transpose(1, 2).contiguous()
