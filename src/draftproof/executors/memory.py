"""The memory of a KV cache: its size, its allocation, and what lies where in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import psutil
import torch
from torch import Tensor

from draftproof.errors import OutOfMemoryError
from draftproof.executors.lengths import check_lengths, refuse_longer, refuse_misfit
from draftproof.hf import BoundModel, SlotCache
from draftproof.numerics.shapes import FAST, Shapes
from draftproof.types import RaggedTokens

JUNK = 1e4  # large and finite: masked by -inf it weighs exactly 0, unmasked it ruins a row


def free_bytes(device: torch.device) -> int | None:
    """Bytes free on a device; None where nobody can tell."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return None


def kv_bytes(model: BoundModel, rows: int, capacity: int) -> int:
    """Size of the KV cache of `rows` sequences of `capacity` tokens, in bytes."""
    return rows * capacity * sum(layer.bytes_per_token for layer in model.layers)


def allocate(model: BoundModel, rows: int, capacity: int, free: int | None) -> SlotCache:
    """Zeroed keys and values of every layer, each on its layer's own device.

    free: bytes that may be used; None: not checked.
    Raises OutOfMemoryError saying what would fit.
    """
    need = kv_bytes(model, rows, capacity)
    if free is not None and need > free:
        per_row = need // rows
        raise OutOfMemoryError(
            f"the KV cache of {rows} rows x {capacity} tokens needs {need / 2**20:,.0f} MiB and "
            f"{free / 2**20:,.0f} MiB are free; max_num_seqs={free // per_row} would fit, or a "
            f"max_model_len of {capacity * free // need}"
        )
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for layer in model.layers:
        for tensors, dim in ((keys, layer.key_dim), (values, layer.value_dim)):
            shape = (rows, layer.kv_heads, capacity, dim)
            tensors.append(torch.zeros(shape, dtype=layer.dtype, device=layer.device))
    return SlotCache(keys, values)


@dataclass(kw_only=True)
class CachedRows:
    """What every executor of a transformers model keeps: its cache, and a length per row.

    model:     shared; several executors may use one model
    rows:      sequences at a time
    capacity:  tokens per row
    shapes:    how kernel shapes are rounded (numerics tier)
    free:      bytes the KV cache may take, None to skip the check
    """

    model: BoundModel
    rows: int
    capacity: int
    shapes: Shapes = FAST
    free: int | None = None
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.rows
        self.vocab_size = self.model.vocab_size
        self.device = self.model.device
        self.cache = allocate(self.model, self.rows, self.slots, self.free)

    @property
    def slots(self) -> int:
        """Slots per row: the capacity, rounded up so that the longest view fits."""
        return self.shapes.view_of(self.capacity)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache."""
        return kv_bytes(self.model, self.rows, self.slots)

    def first_slot(self, row: int) -> int:
        """Where a row's content begins; its other slots follow without a gap."""
        return 0

    def refuse_misfit(self, tokens: RaggedTokens) -> None:
        """Raise InvariantError when tokens do not continue their rows, or do not fit."""
        refuse_misfit(tokens, self.lengths, self.capacity)

    def grow(self, tokens: RaggedTokens) -> None:
        """The tokens are cached."""
        for row, count in zip(tokens.rows, tokens.counts, strict=True):
            self.lengths[row] += count

    def truncate(self, row: int, length: int) -> None:
        """Roll back by shortening: what lies behind is stale and never read."""
        refuse_longer(row, length, self.lengths)
        self.lengths[row] = length

    def release(self, row: int) -> None:
        """Forget a row; its slots are overwritten by the next sequence."""
        self.lengths[row] = 0

    def check(self) -> None:
        """Lengths fit the allocation."""
        check_lengths(self.lengths, self.capacity)
