"""A 16-bit model in float32 for a while: what it computes is then seen without its rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from draftproof.hf.bound import BoundModel
from draftproof.numerics.linear import CalibratedLinear, Product

HALVES = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def in_float32(bound: BoundModel, skipped: Sequence[nn.Module]) -> Iterator[None]:
    """Weights and caches in float32, products unpacked; all is put back, the very same tensors.

    skipped: layers that do not run, and stay as they are
    """
    idle = {id(module) for layer in skipped for module in layer.modules()}
    modules = [module for module in bound.model.modules() if id(module) not in idle]
    wide: dict[int, Tensor] = {}  # a tied weight stays one
    undo: list[tuple[dict[str, Any], str, Any]] = []
    products: list[tuple[CalibratedLinear, Product]] = []
    layers, stack = bound.layers, bound.stack
    try:
        for module in modules:
            for store in (module._parameters, module._buffers):
                for name, tensor in list(store.items()):
                    if tensor is not None and tensor.dtype in HALVES:
                        undo.append((store, name, tensor))
                        store[name] = _widened(module, name, tensor, wide)
            if isinstance(module, CalibratedLinear):
                products.append((module, module.product))
                object.__setattr__(module, "product", Product([module], packs=False))
        bound.layers = [
            replace(layer, dtype=torch.float32) if layer.dtype in HALVES else layer
            for layer in layers
        ]
        bound.stack = None
        yield
    finally:
        bound.layers, bound.stack = layers, stack
        for store, name, tensor in undo:
            store[name] = tensor
        for module, product in products:
            object.__setattr__(module, "product", product)


def _widened(module: nn.Module, name: str, tensor: Tensor, wide: dict[int, Tensor]) -> Any:
    """The tensor in float32; of a linear that was packed, what was packed."""
    if id(tensor) not in wide:
        whole = tensor
        if isinstance(module, CalibratedLinear) and name == "weight":
            whole = module.whole_weight()
        wide[id(tensor)] = whole.detach().float()
    found = wide[id(tensor)]
    return nn.Parameter(found, requires_grad=False) if isinstance(tensor, nn.Parameter) else found
