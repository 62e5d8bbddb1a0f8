"""Attention of flat ragged rows: grouped queries without `repeat_kv`, softcap, sinks, windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.numerics.shapes import Shapes, round_up

KEY_BLOCK = 256


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
    positions: Tensor,
    view: int,
    window: int | None,
    group: int,
    dtype: torch.dtype,
    queries: int = 1,
) -> Tensor:
    """Mask of the folded queries over `view` slots, [R, 1, F, view].

    positions: [R, Q] int64. A query at position p sees slots p - window + 1 .. p, and since token t
    of a row sits in slot t, nothing else is needed to keep rows and stale slots apart.
    F is group * Q, rounded up to a multiple of `queries` by repeating the last query.
    """
    slots = torch.arange(view, device=positions.device)
    hidden = slots > positions[..., None]  # [R, Q, view]
    if window is not None:
        hidden |= slots <= positions[..., None] - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return fold_mask(mask.masked_fill_(hidden, -torch.inf)[:, None], group, queries)


def fold_mask(mask: Tensor, group: int, queries: int) -> Tensor:
    """[R, 1, Q, view] -> [R, 1, F, view], the order and the filling of the folded queries."""
    folded = mask.repeat(1, 1, group, 1)
    return _fill_queries(folded, round_up(folded.shape[2], queries))


def _fill_queries(tensor: Tensor, count: int) -> Tensor:
    """Repeat the last entry of dimension 2 until there are `count`."""
    extra = count - tensor.shape[2]
    if extra == 0:
        return tensor
    return torch.cat([tensor, tensor[:, :, -1:].expand(-1, -1, extra, -1)], dim=2)


def attend(
    shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> Tensor:
    """[R, heads, Q, D] over [R, kv_heads, view, D] -> [R, heads, Q, D].

    mask: [R or 1, 1, F, view] from `additive_mask`, or None when every query sees every slot.
    The queries are filled up to the F of the mask; what is filled in is dropped.
    """
    rows, heads, length, _ = query.shape
    folded = fold(query, keys.shape[1])
    real = folded.shape[2]
    if mask is not None:
        folded = _fill_queries(folded, mask.shape[2])
    if shape.softcap is None and shape.sinks is None:
        out = functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask, scale=shape.scaling
        )
    else:
        out = _explicit(shape, folded, keys, values, mask, length)
    return out[:, :, :real].reshape(rows, heads, length, values.shape[-1])


def _explicit(
    shape: AttentionShape,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    length: int,
) -> Tensor:
    """The same in single operations, for what the fused kernel cannot do; softmax in float32.

    Keys are taken in blocks of KEY_BLOCK, so that no product's size grows with the view: how a
    product of another size cuts its sums is another one. On CPUs all is float32, whose products
    mind fewer sizes than those of 16 bits.
    """
    dtype = query.dtype
    if query.device.type == "cpu":
        query, keys, values = query.float(), keys.float(), values.float()
        mask = None if mask is None else mask.float()
    blocks = keys.transpose(2, 3).split(KEY_BLOCK, dim=3)
    scores = torch.cat([torch.matmul(query, block) for block in blocks], dim=3) * shape.scaling
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if mask is not None:
        scores = scores + mask
    if shape.sinks is not None:
        # one extra score per query head that takes weight and carries no value
        sinks = shape.sinks.to(scores.dtype).repeat_interleave(length)
        sinks = sinks.reshape(1, keys.shape[1], -1, 1).expand(scores.shape[0], -1, -1, 1)
        sinks = _fill_queries(sinks, scores.shape[2])
        scores = torch.cat([scores, sinks], dim=-1)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    out = torch.zeros_like(query[..., :1]).expand(-1, -1, -1, values.shape[-1])
    for first in range(0, keys.shape[2], KEY_BLOCK):
        block = values[:, :, first : first + KEY_BLOCK]
        out = out + torch.matmul(weights[..., first : first + block.shape[2]], block)
    return out.to(dtype)


def attend_standard(
    shape: AttentionShape,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    shapes: Shapes,
) -> Tensor:
    """Ordinary attention for transformers' own loop, under the same shapes; [B, Q, heads, D].

    mask: [B, 1, Q, L], boolean (True = visible) or additive; None means causal, aligned at the end.
    """
    length, total = query.shape[2], keys.shape[2]
    if mask is None:
        positions = torch.arange(total - length, total, device=query.device)[None]
        mask = additive_mask(positions, total, shape.window, 1, query.dtype)
    elif mask.dtype is torch.bool:
        zeros = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        mask = zeros.masked_fill_(~mask, -torch.inf)
    extra = shapes.view_of(total) - total
    keys, values = (functional.pad(part, (0, 0, 0, extra)) for part in (keys, values))
    mask = functional.pad(mask[..., :total], (0, extra), value=-torch.inf)
    group, width = query.shape[1] // keys.shape[1], min(shapes.width, length)
    parts = []
    for part, seen in zip(query.split(width, dim=2), mask.split(width, dim=2), strict=True):
        folded = fold_mask(seen, group, shapes.queries)
        parts.append(attend(shape, part, keys, values, folded))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()
