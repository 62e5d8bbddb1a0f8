"""Linear layers whose result for one row does not depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftproof.numerics.shapes import ANY, COARSE, FAST, Rows, Shapes
from draftproof.numerics.torch_private import lacks_kernel, multiply_packed, pack

PACKED_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # others multiply as they are


class Switch(Protocol):
    """Says whether the calibrated kernels are wanted right now, and how rows are rounded."""

    @property
    def current(self) -> Shapes | None:
        """Rules of the forward that runs; None outside this package's forwards."""


def fill_rows(rows: Tensor, count: int) -> Tensor:
    """[M, in] -> [count, in] by repeating the last row."""
    extra = count - len(rows)
    return rows if extra <= 0 else torch.cat([rows, rows[-1:].expand(extra, -1)])


def in_pieces(run: Callable[[Tensor], Tensor], rows: Tensor, rule: Rows) -> Tensor:
    """`run` [M, in] -> [M, out] on all rows, called only as the rule allows."""
    count = len(rows)
    if count > rule.most:
        parts = rows.split(rule.piece(count))
        return torch.cat([in_pieces(run, part, rule) for part in parts])
    wanted = rule.filled(count)
    return run(rows) if wanted == count else run(fill_rows(rows, wanted))[:count]


def kind_of(weight: Tensor, name: str = "linear", *, bias: bool = False) -> str:
    """What tells matrix products apart: those of one kind are treated alike by the kernels.

    weight: [out, in] as it is multiplied with
    """
    layout = "" if weight.is_mkldnn or weight.is_contiguous() else " transposed"
    out_features, in_features = weight.shape
    bias_too = " + bias" if bias else ""
    return f"{name} {weight.dtype} {out_features} x {in_features}{layout}{bias_too}"


class CalibratedLinear(nn.Linear):
    """An `nn.Linear` that is called with the row counts its kind needs, by the fastest kernel.

    Made from an existing layer by changing its class (`calibrate_linears`), so that parameters,
    ties and `state_dict` stay what they were. What it multiplies with is its `Product`. Its own
    weight may be gone (`drop_weight`): then it is unpacked again for whoever asks.
    """

    switch: Switch
    product: Product

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        switch: Switch | None = vars(self).get("switch")
        product: Product | None = vars(self).get("product")
        if switch is None or product is None:  # given back while the model ran
            return nn.Linear.forward(self, input)
        shapes = switch.current
        if self.weight.is_meta:
            return product.of(self, input, shapes or FAST)
        if shapes is None:
            return nn.Linear.forward(self, input)
        rows = input.numel() // self.in_features
        if product.wide and rows == 1 and shapes.lone_row:
            # one row reads each weight once either way, and the 16-bit weight is half as long
            return nn.Linear.forward(self, input)
        return product.of(self, input, shapes)

    def drop_weight(self) -> None:
        """Leave the packed copy as the only one; the parameter keeps its shape and type."""
        empty = torch.empty_like(self.weight, device="meta")
        self.weight = nn.Parameter(empty, requires_grad=False)

    def whole_weight(self) -> nn.Parameter:
        """The layer's own weight [out, in], unpacked where it was dropped."""
        if not self.weight.is_meta:
            own: nn.Parameter = self._parameters["weight"]  # type: ignore[assignment]
            return own
        return nn.Parameter(self.product.weight_of(self), requires_grad=False)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """A dropped weight comes back first: what is copied into nothing would be lost."""
        if self.weight.is_meta:
            self.weight = self.whole_weight()
        super()._load_from_state_dict(*args, **kwargs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.weight.is_meta:
            destination[f"{prefix}weight"] = self.whole_weight().data

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copied and pickled as the ordinary layer it was: packed weights cannot be."""
        state = {k: v for k, v in vars(self).items() if k not in ("switch", "product")}
        state["_parameters"] = {**self._parameters, "weight": self.whole_weight()}
        return nn.Linear.__new__, (nn.Linear,), state


class Product:
    """The matrix product of one linear layer, or of several that read the same input, in one call.

    layers: what the columns of the result belong to, in this order
    packed: the weights in oneDNN's own layout, None to multiply with the weight as it is. That
            kernel is faster for few rows, and its rows are independent in more cases.
    wide:   the packed weight is float32 although the layer's type has 16 bits: there is no 16-bit
            matrix kernel. Products and sums in float32, one rounding at the end, which is also
            what such kernels do.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, packs: bool) -> None:
        self.layers = list(layers)
        first = layers[0].weight
        self.dtype = first.dtype
        self.wide = packs and lacks_kernel(first.dtype, first.device)
        self.packed: Tensor | None = None
        self.bias: Tensor | None = layers[0].bias
        if len(layers) > 1 and self.bias is not None:
            self.bias = torch.cat([layer.bias for layer in layers])
        if packs:
            weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else first
            self.packed = pack(weight.detach().float() if self.wide else weight.detach())
            if self.wide and self.bias is not None:
                self.bias = self.bias.float()
        self.in_features = layers[0].in_features
        self.widths = [layer.out_features for layer in layers]
        opaque = self.packed is not None and self.packed.is_mkldnn
        name = "wide" if self.wide else "packed" if opaque else "linear"
        weight = first if self.packed is None else self.packed
        self.kind = kind_of(weight, name, bias=self.bias is not None)
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weights."""
        return 0 if self.packed is None else self.packed.numel() * self.packed.dtype.itemsize

    def weight_of(self, layer: nn.Linear) -> Tensor:
        """One layer's weight [out, in] in its own type, from the packed ones, bit for bit."""
        assert self.packed is not None
        dense = self.packed.to_dense() if self.packed.is_mkldnn else self.packed
        own: Tensor = dense.split(self.widths)[self.layers.index(layer)]
        return own.to(self.dtype, copy=True)

    def of(self, layer: nn.Linear, given: Tensor, shapes: Shapes) -> Tensor:
        """One layer's share of the result; the others' are kept until they ask for them."""
        if len(self.layers) == 1:
            return self._run(given, shapes)
        place = self.layers.index(layer)
        if self._input is not given or self._parts[place] is None:
            self._input, self._parts = given, list(self._run(given, shapes).split(self.widths, -1))
        part, self._parts[place] = self._parts[place], None
        if not any(part is not None for part in self._parts):
            self._input = None
        assert part is not None
        return part

    def _run(self, given: Tensor, shapes: Shapes) -> Tensor:
        rows = given.reshape(-1, self.in_features)  # [M, in]
        out = in_pieces(self.multiply, rows, usual_rule(self, shapes))
        return out.view(*given.shape[:-1], out.shape[-1])

    def multiply(self, rows: Tensor) -> Tensor:
        """[M, in] -> [M, out] with the rows as they are."""
        if self.packed is None:
            return functional.linear(rows, self.layers[0].weight, self.bias)
        if self.wide:
            return multiply_packed(rows.float(), self.packed, self.bias).to(rows.dtype)
        return multiply_packed(rows, self.packed, self.bias)

    def with_weight(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """The same product without a bias, with another weight [out, in] in the type it takes.

        Where the layer multiplies in float32 this is the result before its one rounding.
        """
        if self.packed is None:
            return lambda rows: functional.linear(rows, weight)
        packed = pack(weight)
        return lambda rows: multiply_packed(rows, packed, None)


def usual_rule(product: Product, shapes: Shapes) -> Rows:
    """With which row counts a product is called under these shapes."""
    rule = shapes.rows_of(product.kind)
    return COARSE if rule == ANY and product.packed is not None else rule


@dataclass(slots=True)
class Rewrite:
    """What was done to a model's linears when it was loaded."""

    layers: int = 0
    packed_bytes: int = 0
    dropped_bytes: int = 0  # of the model's own weights that are kept packed only
    notes: list[str] = field(default_factory=list)


def calibrate_linears(model: nn.Module, switch: Switch) -> list[CalibratedLinear]:
    """Turn every plain `nn.Linear` of a model into a CalibratedLinear, in place.

    Quantised and other special linears are left as they are. Calling it again takes changed
    weights over.
    """
    layers = []
    for module in model.modules():
        if type(module) is nn.Linear or type(module) is CalibratedLinear:
            if isinstance(module, CalibratedLinear):
                module.weight = module.whole_weight()
            module.__class__ = CalibratedLinear
            object.__setattr__(module, "switch", switch)
            object.__setattr__(module, "product", Product([module], packs=False))
            layers.append(module)
    return layers  # type: ignore[return-value]


def pack_linears(
    layers: Sequence[CalibratedLinear],
    groups: Sequence[Sequence[CalibratedLinear]],
    keeps: Callable[[CalibratedLinear], bool] = lambda layer: True,
) -> Rewrite:
    """Pack the weights of the layers that lie on a CPU; layers of a group get one product.

    groups: layers that read the same input, each in at most one group
    keeps:  whether a packed layer's own weight stays beside the packed one
    """
    rewrite = Rewrite(layers=len(layers))
    grouped = {id(layer): group for group in groups for layer in group}
    tied: dict[int, Product] = {}
    for layer in layers:
        group = grouped.get(id(layer), [layer])
        packs = layer.weight.device.type == "cpu" and layer.weight.dtype in PACKED_TYPES
        if not packs or layer is not group[0]:
            continue
        place = layer.weight.data_ptr()
        if place not in tied or len(group) > 1 or layer.bias is not None:
            tied[place] = Product(group, packs=True)
            rewrite.packed_bytes += tied[place].packed_bytes
        product = tied[place]
        for member in group:
            object.__setattr__(member, "product", product)
            if not keeps(member):
                rewrite.dropped_bytes += member.weight.nbytes
                member.drop_weight()
    if tied:
        rewrite.notes += _describe(rewrite, groups, any(p.wide for p in tied.values()))
    return rewrite


def _describe(rewrite: Rewrite, groups: Sequence[object], wide: bool) -> list[str]:
    packed, dropped = (
        f"{n / 2**20:,.0f} MiB" for n in (rewrite.packed_bytes, rewrite.dropped_bytes)
    )
    where = f"in place of {dropped} of" if rewrite.dropped_bytes else "beside"
    notes = [
        f"{rewrite.layers} linears have their weights packed, {packed} {where} the model's own"
    ]
    if groups:
        notes.append(f"{len(groups)} groups of linears that read the same input, fused")
    if wide:
        notes.append("linears multiply in float32: this CPU has no 16-bit matrix kernel")
    return notes


def restore_linears(model: nn.Module) -> None:
    """Undo `calibrate_linears` and `pack_linears`."""
    for module in model.modules():
        if type(module) is CalibratedLinear:
            module.weight = module.whole_weight()
            object.__delattr__(module, "switch")
            object.__delattr__(module, "product")
            module.__class__ = nn.Linear  # type: ignore[assignment]


class RoundedRows(TorchFunctionMode):
    """Rounds the rows of every linear that a model calls by itself (routers, GPT-2's layers).

    Intercepting each call costs more than an engine's round may, so it is on in transformers' own
    loop, and in the forward of the few modules that need it.
    """

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.shapes = shapes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            rows, weight = args[0], args[1]
            flat = rows.reshape(-1, rows.shape[-1])
            rule = self._rule(weight, len(args) > 2 and args[2] is not None)
            out = in_pieces(lambda part: func(part, *args[1:], **kwargs), flat, rule)
            return out.reshape(*rows.shape[:-1], out.shape[-1])
        if func is torch.addmm:
            bias, rows, weight = args  # [in, out]
            rule = self._rule(weight.T, True)
            return in_pieces(lambda part: func(bias, part, weight, **kwargs), rows, rule)
        return func(*args, **kwargs)

    def _rule(self, weight: Tensor, bias: bool) -> Rows:
        return self.shapes.rows_of(kind_of(weight, bias=bias)) if self.shapes.products else ANY
