"""Linear layers whose result for one row does not depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftproof.numerics.shapes import ANY, Rows, Shapes

PACKED_FOR = 32  # rows that the packed layout is chosen for: a small batch of blocks of drafts


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


def lacks_kernel(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this CPU has no matrix kernel for a 16-bit type, so that torch multiplies row by row.

    Without AVX-512 or AMX, a bfloat16 linear takes as long for M rows as M linears of one row:
    scoring K + 1 tokens at once would gain nothing.
    """
    if device.type != "cpu":
        return False
    ops = torch.ops.mkldnn
    if dtype is torch.bfloat16:
        return not ops._is_mkldnn_bf16_supported()
    return dtype is torch.float16 and not ops._is_mkldnn_fp16_supported()


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
    ties and `state_dict` stay what they were.

    packed: the weight in oneDNN's own layout, None to multiply with the weight as it is. That
            kernel is faster for few rows, and its rows are independent in more cases.
    wide:   the packed weight is float32 although the layer's type has 16 bits: there is no 16-bit
            matrix kernel. Products and sums in float32, one rounding at the end, which is also
            what such kernels do.
    """

    switch: Switch
    packed: Tensor | None
    packed_bias: Tensor | None
    wide: bool
    kind: str

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        shapes = self.switch.current
        if shapes is None:
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)  # [M, in]
        if self.wide and len(rows) == 1 and shapes.lone_row:
            # one row reads each weight once either way, and the 16-bit weight is half as long
            out = functional.linear(rows, self.weight, self.bias)
        else:
            out = in_pieces(self.multiply, rows, shapes.rows_of(self.kind))
        return out.reshape(*input.shape[:-1], self.out_features)

    def multiply(self, rows: Tensor) -> Tensor:
        """[M, in] -> [M, out] with the rows as they are."""
        if self.packed is None:
            return functional.linear(rows, self.weight, self.bias)
        if self.wide:
            return multiply_packed(rows.float(), self.packed, self.packed_bias).to(rows.dtype)
        return multiply_packed(rows, self.packed, self.packed_bias)

    def with_weight(self, weight: Tensor) -> Callable[[Tensor], Tensor]:
        """The same product without a bias, with another weight [out, in] in the type it takes.

        Where the layer multiplies in float32 this is the result before its one rounding.
        """
        if self.packed is None:
            return lambda rows: functional.linear(rows, weight)
        packed = pack(weight)
        return lambda rows: multiply_packed(rows, packed, None)


def multiply_packed(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """[M, in] -> [M, out] with a weight from `pack`."""
    if not packed.is_mkldnn:
        return functional.linear(rows, packed, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out


OWN = ("switch", "packed", "packed_bias", "wide", "kind")  # attributes that nn.Linear lacks


@dataclass(slots=True)
class Rewrite:
    """What was done to a model's linears when it was loaded."""

    layers: int = 0
    packed_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def calibrate_linears(model: nn.Module, switch: Switch) -> Rewrite:
    """Turn every plain `nn.Linear` of a model into a CalibratedLinear, in place.

    Quantised and other special linears are left as they are. Calling it again refreshes the
    packed copies, so that changed weights are seen.
    """
    rewrite = Rewrite()
    shared: dict[int, Tensor] = {}
    wide = False
    for module in model.modules():
        if type(module) is nn.Linear or type(module) is CalibratedLinear:
            wide |= _convert(module, switch, shared)
            rewrite.layers += 1
    rewrite.packed_bytes = sum(part.numel() * part.dtype.itemsize for part in shared.values())
    if shared:
        size = f"{rewrite.packed_bytes / 2**20:,.0f} MiB beside the model's own weights"
        rewrite.notes.append(f"{rewrite.layers} linears have their weights packed, {size}")
    if wide:
        rewrite.notes.append("they multiply in float32: this CPU has no 16-bit matrix kernel")
    return rewrite


def _convert(module: nn.Module, switch: Switch, shared: dict[int, Tensor]) -> bool:
    """Whether the layer multiplies in float32 from now on."""
    module.__class__ = CalibratedLinear
    layer: Any = module
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    wide = lacks_kernel(weight.dtype, weight.device)
    packed = None
    if weight.device.type == "cpu":
        place = weight.data_ptr()
        if place not in shared:
            shared[place] = pack(weight.float() if wide else weight)
        packed = shared[place]
        bias = bias.float() if wide and bias is not None else bias
    name = "linear" if packed is None else "wide" if wide else "packed"
    kind = kind_of(layer.weight if packed is None else packed, name, bias=bias is not None)
    for attribute, value in zip(OWN, (switch, packed, bias, wide, kind), strict=True):
        object.__setattr__(layer, attribute, value)
    return wide


def pack(weight: Tensor) -> Tensor:
    """A weight in oneDNN's own layout, opaque; as it is where torch has no oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def restore_linears(model: nn.Module) -> None:
    """Undo `calibrate_linears`."""
    for module in model.modules():
        if type(module) is CalibratedLinear:
            for name in OWN:
                object.__delattr__(module, name)
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
            return out.reshape(*rows.shape[:-1], -1)
        if func is torch.addmm:
            bias, rows, weight = args  # [in, out]
            rule = self._rule(weight.T, True)
            return in_pieces(lambda part: func(bias, part, weight, **kwargs), rows, rule)
        return func(*args, **kwargs)

    def _rule(self, weight: Tensor, bias: bool) -> Rows:
        return self.shapes.rows_of(kind_of(weight, bias=bias)) if self.shapes.products else ANY
