"""Cache objects handed to transformers models in place of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from draftproof.hf.kernels import PLAIN, Layout
from draftproof.numerics.attention import AttentionShape, attend
from draftproof.numerics.probes import AttentionCase
from draftproof.numerics.shapes import Shapes


class SlotCache(Cache):
    """A cache of `[rows, kv_heads, slots, D]` tensors, allocated once and written in place.

    `update` returns the layer's whole tensors: the attention function takes the views it needs,
    so no key or value is ever copied to be read.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        super().__init__(layers=[])
        self.keys, self.values = keys, values
        self.layout: Layout | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.layout is not None
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        self.layout.write(keys, values, key_states, value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given; no model may derive them from here

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer stores per token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(slots=True)
class Probe:
    """Records what each layer would store, and whether it attends through the registry."""

    layers: dict[int, LayerKV] = field(default_factory=dict)
    cases: dict[str, AttentionCase] = field(default_factory=dict)
    asked: list[AttentionShape] = field(default_factory=list)  # by layer
    shapes: Shapes = PLAIN

    @property
    def attended(self) -> int:
        """Layers that attend through the registry."""
        return len(self.asked)

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.asked.append(shape)
        heads, kv_heads, dims = query.shape[1], keys.shape[1], (keys.shape[-1], values.shape[-1])
        case = AttentionCase(heads, kv_heads, *dims, query.dtype, shape)
        self.cases[case.key] = case
        return attend(shape, query, keys, values, mask=None).transpose(1, 2).contiguous()


class ProbeCache(Cache):
    def __init__(self, probe: Probe) -> None:
        super().__init__(layers=[])
        self.probe = probe

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        _, heads, _, dim = key_states.shape
        self.probe.layers[layer_idx] = LayerKV(
            heads, dim, value_states.shape[-1], key_states.dtype, key_states.device
        )
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
