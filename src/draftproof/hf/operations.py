"""The matrix products of a model, so that each kind can be probed for row independence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from draftproof.numerics.linear import CalibratedLinear


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product: `run` takes [M, in_features] and treats every row alike."""

    name: str  # of the module it was found in
    key: str  # products with the same key behave alike
    in_features: int
    out_features: int
    run: Callable[[Tensor], Tensor]


def products(model: nn.Module) -> dict[str, Product]:
    """One representative of each distinct product of a model, by key."""
    found: dict[str, Product] = {}
    for name, module in model.named_modules():
        for product in _products_of(name, module):
            found.setdefault(product.key, product)
    return found


def _products_of(name: str, module: nn.Module) -> Iterator[Product]:
    if isinstance(module, CalibratedLinear):
        wide = module.wide is not None
        run = module.multiply_wide if wide else module.multiply
        kind = "wide" if wide else "linear"
        yield _product(name, kind, module.weight, run, module.bias is not None)
    elif isinstance(module, Conv1D):
        yield _product(name, "conv1d", module.weight.T, module.forward, True)
    elif isinstance(module, nn.Linear):  # a quantiser's: called as it is
        shape = (module.out_features, module.in_features)
        key = f"{type(module).__name__} {module.weight.dtype} {shape[0]} x {shape[1]}"
        yield Product(name, key, shape[1], shape[0], module.forward)
    elif not isinstance(module, nn.Embedding):
        yield from _raw_products(name, module)


def _raw_products(name: str, module: nn.Module) -> Iterator[Product]:
    """Weights that a module multiplies with by itself: routers [out, in], experts [E, out, in]."""
    for parameter, weight in module.named_parameters(recurse=False):
        if weight.dim() not in (2, 3):
            continue
        matrix = weight if weight.dim() == 2 else weight[0]
        if getattr(module, "is_transposed", False):
            matrix = matrix.T
        run = _multiply_with(matrix)
        yield _product(f"{name}.{parameter}", "linear", matrix, run, False)


def _multiply_with(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: functional.linear(rows, matrix)


def _product(
    name: str, kind: str, weight: Tensor, run: Callable[[Tensor], Tensor], bias: bool
) -> Product:
    out_features, in_features = weight.shape
    layout = "" if weight.is_contiguous() else " transposed"
    key = f"{kind} {weight.dtype} {out_features} x {in_features}{layout}{' + bias' * bias}"
    return Product(name, key, in_features, out_features, run)
