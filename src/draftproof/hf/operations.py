"""The matrix products of a model, so that each kind can be probed for row independence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from draftproof.numerics.linear import CalibratedLinear, RoundedRows, Switch, kind_of

PLAIN_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ProductKind:
    """One matrix product, which treats every row alike.

    kind:  products of one kind behave alike
    run:   the product [M, in] -> [M, out] with another weight [out, in] of the same kind in its
           place; None where a layer can only be run as it is
    """

    name: str  # of the module it was found in
    kind: str
    in_features: int
    out_features: int
    dtype: torch.dtype
    run: Callable[[Tensor], Callable[[Tensor], Tensor]] | None
    layer: Callable[[Tensor], Tensor]


def products(model: nn.Module) -> dict[str, ProductKind]:
    """One representative of each kind of product of a model."""
    found: dict[str, ProductKind] = {}
    for name, module in model.named_modules():
        for product in _products_of(name, module):
            found.setdefault(product.kind, product)
    return found


def _products_of(name: str, module: nn.Module) -> Iterator[ProductKind]:
    if isinstance(module, CalibratedLinear):
        own = module.product
        dtype = torch.float32 if own.wide else own.dtype
        sizes = own.in_features, sum(own.widths)
        yield ProductKind(name, own.kind, *sizes, dtype, own.with_weight, own.multiply)
    elif isinstance(module, Conv1D):
        yield _product(name, module.weight.T, module.bias)
    elif isinstance(module, nn.Linear) and not _multiplies_by_itself(module):  # a quantiser's
        kind = kind_of(module.weight, type(module).__name__)
        into, out = module.in_features, module.out_features
        yield ProductKind(name, kind, into, out, model_dtype(module), None, module.forward)
    else:
        for parameter, weight, bias in _raw_weights(module):
            yield _product(f"{name}.{parameter}", weight, bias)


def _multiplies_by_itself(module: nn.Linear) -> bool:
    """A linear in name only: a router, whose forward returns more than the product."""
    weight = module.weight
    plain = type(weight) is nn.Parameter and weight.dtype in PLAIN_TYPES
    return (
        plain
        and not isinstance(module, CalibratedLinear)
        and tuple(weight.shape) == (module.out_features, module.in_features)
    )


def model_dtype(module: nn.Module) -> torch.dtype:
    """The floating point type that a quantised layer works in."""
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return next(floating, torch.get_default_dtype())


def _raw_weights(module: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Weights [out, in] that a module multiplies with by itself: routers, and experts' first."""
    if isinstance(module, nn.Embedding):
        return
    for name, weight in module.named_parameters(recurse=False):
        if weight.dim() in (2, 3) and not name.endswith("bias"):
            matrix = weight if weight.dim() == 2 else weight[0]
            bias = getattr(module, f"{name}_bias", None)
            if isinstance(bias, Tensor) and bias.dim() == 2:
                bias = bias[0]
            flipped = getattr(module, "is_transposed", False)
            yield name, matrix.T if flipped else matrix, bias


def _product(name: str, weight: Tensor, bias: Tensor | None) -> ProductKind:
    def with_weight(other: Tensor) -> Callable[[Tensor], Tensor]:
        if weight.is_contiguous():
            return lambda rows: functional.linear(rows, other, bias)
        flipped = other.T.contiguous()  # [in, out], as such layers keep it
        if bias is None:
            return lambda rows: functional.linear(rows, flipped.T)
        return lambda rows: torch.addmm(bias, rows, flipped)

    kind = kind_of(weight, bias=bias is not None)
    sizes = weight.shape[1], weight.shape[0]
    return ProductKind(name, kind, *sizes, weight.dtype, with_weight, with_weight(weight))


class RoundedForward:
    """The forward of a module that multiplies by itself, under the rules of the forward that runs.

    Put in the place of `module.forward`; `inner` is what was there.
    """

    def __init__(self, inner: Callable[..., Any], switch: Switch) -> None:
        self.inner, self.switch = inner, switch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        shapes = self.switch.current
        if shapes is None or not shapes.products:
            return self.inner(*args, **kwargs)
        with RoundedRows(shapes):
            return self.inner(*args, **kwargs)


def reading_together(
    model: nn.Module, layers: Sequence[CalibratedLinear], run: Callable[[], object]
) -> list[list[CalibratedLinear]]:
    """Linears of one module that read the very same tensor while `run` runs the model: q, k and v.

    Only those that could be one layer: of one type, on one device, all with a bias or none.
    """
    parents = {id(child): parent for parent in model.modules() for child in parent.children()}
    seen: list[tuple[CalibratedLinear, Tensor]] = []

    def note(module: Any, inputs: Any) -> None:
        seen.append((module, inputs[0]))  # the tensor itself: a freed one's id comes again

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    groups: dict[object, list[CalibratedLinear]] = {}
    for layer, given in seen:
        weight, parent = layer.weight, parents[id(layer)]
        key = id(parent), id(given), weight.dtype, weight.device, layer.bias is None
        if layer not in groups.setdefault(key, []):
            groups[key].append(layer)
    return [group for group in groups.values() if len(group) > 1]


def round_own_products(model: nn.Module, switch: Switch) -> None:
    """Let routers, Conv1D layers and their like follow the rules; calling it again is harmless."""
    for module in model.modules():
        # experts behind transformers' interface run this package's own function
        linear = isinstance(module, nn.Linear) and not _multiplies_by_itself(module)
        ours = linear or hasattr(module, "is_transposed")
        raw = isinstance(module, Conv1D) or (not ours and any(True for _ in _raw_weights(module)))
        if raw and not isinstance(module.forward, RoundedForward):
            module.forward = RoundedForward(module.forward, switch)


def restore_own_products(model: nn.Module) -> None:
    """Undo `round_own_products`."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), RoundedForward):
            del module.forward
