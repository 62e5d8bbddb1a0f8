"""Decoder layers of the Llama kind as one function of tensors, with no Python between kernels.

The same kernels on the same shapes in the same order as transformers' modules call them, so that
every bit is the same; what is saved is everything around them: module calls, keyword arguments,
views made twice. The functions are TorchScript, whose interpreter calls a kernel in a fraction of
the time that Python takes; where there is no TorchScript they run as the Python they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.numerics.torch_private import packed_linear, script

# TorchScript reads the annotations below: no `X | None`, and no postponed evaluation in this file.

Piece = tuple[int, int, int, int, int, int]  # low, high, first, size, width, view of a `Block`


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatRows:
    """Where the N tokens of one forward sit in the KV cache, as tensors and numbers alone.

    rows, slots:     cache row and slot of every real token, [<= N] int64
    real:            flat index of every real token; None: they are the first ones
    pieces:          attention calls, see `Block`
    gather, scatter: per piece, flat index of each query, and which queries are real tokens
    masks:           per kind of layer and piece, [R, 1, F, view]
    """

    rows: Tensor
    slots: Tensor
    real: Optional[Tensor]  # noqa: UP045
    pieces: list[Piece]
    gather: list[Optional[Tensor]]  # noqa: UP045
    scatter: list[Optional[Tensor]]  # noqa: UP045
    masks: list[list[Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTensors:
    """What the layers are made of, each list by layer.

    weights:   input norm, packed query-key-value, packed output, norm before the MLP, packed
               gate-up, packed down
    biases:    of the four products
    per_head:  weights of the norms of query and key heads, [heads + kv_heads, D]; none: []
    kinds:     which of the masks
    """

    weights: list[list[Tensor]]
    biases: list[list[Optional[Tensor]]]  # noqa: UP045
    per_head: list[Tensor]
    kinds: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSizes:
    """What all layers have in common.

    wide: products are float32 although the layers' type has 16 bits
    """

    heads: int
    kv_heads: int
    eps: float
    scaling: float
    wide: bool


def _norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension, in float32, rounded before the weight."""
    wide = hidden.to(torch.float32)
    variance = wide.pow(2).mean(-1, True)
    return weight * (wide * torch.rsqrt(variance + eps)).to(hidden.dtype)


def _multiply(rows: Tensor, weight: Tensor, bias: Optional[Tensor], wide: bool) -> Tensor:  # noqa: UP045
    """As `Product.multiply` with packed weights."""
    given = rows.to(torch.float32) if wide else rows
    out = packed_linear(given, weight, bias)
    return out.to(rows.dtype) if wide else out


def _wanted(count: int, sizes: list[int]) -> int:
    """As `Rows.filled` for at most `sizes[-1]` rows."""
    for size in sizes:
        if size >= count:
            return size
    return sizes[-1]


def _room(hidden: Tensor, width: int, sizes: list[int]) -> Tensor:
    """Zeros [M, width] for a product that is called with more rows than there are; else none.

    Made once for all layers: filling up anew each time takes longer than many a kernel.
    """
    count = hidden.size(0)
    wanted = count if count > sizes[-1] else _wanted(count, sizes)
    return torch.zeros(
        [wanted if wanted > count else 0, width], dtype=hidden.dtype, device=hidden.device
    )


def _product(
    rows: Tensor,
    room: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],  # noqa: UP045
    sizes: list[int],
    wide: bool,
) -> Tensor:
    """As `in_pieces`: [M, in] -> [M, out]; only that what is filled in is zeros."""
    count = rows.size(0)
    if room.size(0):
        room[:count].copy_(rows)
        return _multiply(room, weight, bias, wide)[:count]
    most = sizes[-1]
    if count <= most:
        return _multiply(rows, weight, bias, wide)
    pieces = (count + most - 1) // most
    parts: list[Tensor] = []
    for part in rows.split((count + pieces - 1) // pieces):
        extra = _wanted(part.size(0), sizes) - part.size(0)
        filled = torch.cat([part, part[-1:].expand(extra, -1)]) if extra else part
        parts.append(_multiply(filled, weight, bias, wide)[: part.size(0)])
    return torch.cat(parts)


def _attention(
    query: Tensor,  # [N, heads, D]
    keys: Tensor,  # [rows, kv_heads, slots, D]
    values: Tensor,
    pieces: list[Piece],
    gather: list[Optional[Tensor]],  # noqa: UP045
    scatter: list[Optional[Tensor]],  # noqa: UP045
    masks: list[Tensor],
    scaling: float,
) -> Tensor:
    """As `RowLayout.attend`: [N, heads x D]."""
    heads, dim = query.size(1), query.size(2)
    kv_heads = keys.size(1)
    parts: list[Tensor] = []
    total = 0
    for index, (low, high, first, size, width, view) in enumerate(pieces):
        places = gather[index]
        part = query[first : first + size] if places is None else query[places]
        rows, real = high - low, heads // kv_heads * width
        part = part.reshape(rows, width, heads, dim).transpose(1, 2)
        folded = part.reshape(rows, kv_heads, real, dim)
        mask = masks[index]
        extra = mask.size(2) - real
        if extra:
            folded = torch.cat([folded, folded[:, :, -1:].expand(-1, -1, extra, -1)], 2)
        out = functional.scaled_dot_product_attention(
            folded,
            keys[low:high, :, :view],
            values[low:high, :, :view],
            attn_mask=mask,
            scale=scaling,
        )
        if extra:
            out = out[:, :, :real]
        out = out.reshape(rows, heads, width, dim).transpose(1, 2)
        out = out.reshape(rows * width, heads * dim)
        live = scatter[index]
        parts.append(out if live is None else out[live])
        total += size
    if total < query.size(0):
        parts.append(torch.zeros_like(query[total:]).reshape(-1, heads * dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _layers(
    hidden: Tensor,  # [N, hidden]
    cos: Tensor,  # [N, 1, D]
    sin: Tensor,  # [N, 1, D], its first half negated
    weights: list[list[Tensor]],
    biases: list[list[Optional[Tensor]]],  # noqa: UP045
    per_head: list[Tensor],
    kinds: list[int],
    keys: list[Tensor],
    values: list[Tensor],
    rows: Tensor,
    slots: Tensor,
    real: Optional[Tensor],  # noqa: UP045
    pieces: list[Piece],
    gather: list[Optional[Tensor]],  # noqa: UP045
    scatter: list[Optional[Tensor]],  # noqa: UP045
    masks: list[list[Tensor]],
    rules: list[list[int]],
    heads: int,
    kv_heads: int,
    eps: float,
    scaling: float,
    wide: bool,
) -> Tensor:
    """All layers: [N, hidden] -> [N, hidden]; keys and values of real tokens are cached."""
    both, dim, count = heads + kv_heads, cos.size(2), rows.size(0)
    into = _room(hidden, hidden.size(1), rules[0])
    out = _room(hidden, heads * dim, rules[1])
    up = _room(hidden, hidden.size(1), rules[2])
    down = _room(hidden, weights[0][5].size(1), rules[3])
    for index in range(len(weights)):
        layer, bias = weights[index], biases[index]
        flat = _product(_norm(hidden, layer[0], eps), into, layer[1], bias[0], rules[0], wide)
        flat = flat.view(-1, both + kv_heads, dim)  # query, key and value heads
        turning = flat[:, :both]
        if len(per_head):
            turning = _norm(turning, per_head[index], eps)
        # (-b, a) x (sin, sin) is (b, a) x (-sin, sin), and the same bits
        turned = (turning * cos).add_(turning.roll([dim // 2], [2]).mul_(sin))
        key, value = turned[:, heads:], flat[:, both:]
        key, value = (key[:count], value[:count]) if real is None else (key[real], value[real])
        keys[index].transpose(1, 2).index_put_([rows, slots], key)
        values[index].transpose(1, 2).index_put_([rows, slots], value)
        seen = _attention(
            turned[:, :heads],
            keys[index],
            values[index],
            pieces,
            gather,
            scatter,
            masks[kinds[index]],
            scaling,
        )
        hidden = hidden + _product(seen, out, layer[2], bias[1], rules[1], wide)
        flat = _product(_norm(hidden, layer[3], eps), up, layer[4], bias[2], rules[2], wide)
        gate, other = flat.chunk(2, -1)
        inner = functional.silu(gate) * other
        hidden = hidden + _product(inner, down, layer[5], bias[3], rules[3], wide)
    return hidden


def scripted() -> bool:
    """Whether layers run without Python between their kernels."""
    return script(_layers) is not None


def run_layers(
    hidden: Tensor,
    angles: tuple[Tensor, Tensor],
    tensors: LayerTensors,
    sizes: LayerSizes,
    cache: tuple[list[Tensor], list[Tensor]],
    flat: FlatRows,
    rules: list[list[int]],
) -> Tensor:
    """All layers: hidden [N, hidden] -> [N, hidden], keys and values cached.

    angles: cosine and sine, [N, D]
    cache:  keys and values of every layer, [rows, kv_heads, slots, D]
    rules:  the row counts allowed for each of the four products
    """
    cos, sin = (part[:, None] for part in angles)
    sin = torch.cat([-sin[..., : sin.shape[-1] // 2], sin[..., sin.shape[-1] // 2 :]], dim=-1)
    run: Callable[..., Tensor] = script(_layers) or _layers
    return run(
        hidden,
        cos,
        sin,
        tensors.weights,
        tensors.biases,
        tensors.per_head,
        tensors.kinds,
        *cache,
        flat.rows,
        flat.slots,
        flat.real,
        flat.pieces,
        flat.gather,
        flat.scatter,
        flat.masks,
        rules,
        sizes.heads,
        sizes.kv_heads,
        sizes.eps,
        sizes.scaling,
        sizes.wide,
    )
