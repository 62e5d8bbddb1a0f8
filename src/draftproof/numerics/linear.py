"""Linear layers whose result for one row does not depend on how many rows there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from draftproof.numerics.shapes import round_up

PACKED_FOR = 8  # rows that the packed layout is chosen for: a small batch, or one block of drafts


class Switch(Protocol):
    """Says whether the calibrated kernels are wanted right now, and how rows are rounded."""

    @property
    def active(self) -> bool:
        """False outside this package's forwards: the layer is then an ordinary one."""

    @property
    def row_multiple(self) -> int:
        """Rows a linear may be called with are multiples of this."""

    @property
    def lone_row(self) -> bool:
        """Whether a single row may take a kernel of its own."""


def fill_rows(rows: Tensor, multiple: int) -> Tensor:
    """[M, in] -> [M', in], M' the next multiple; the last row is repeated."""
    extra = round_up(len(rows), multiple) - len(rows)
    return rows if extra == 0 else torch.cat([rows, rows[-1:].expand(extra, -1)])


def linear(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, multiple: int = 1
) -> Tensor:
    """`functional.linear` on [M, in], called with a multiple of `multiple` rows."""
    return functional.linear(fill_rows(rows, multiple), weight, bias)[: len(rows)]


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


class CalibratedLinear(nn.Linear):
    """An `nn.Linear` that rounds its row count and may multiply in float32.

    Made from an existing layer by changing its class (`calibrate_linears`), so that parameters,
    ties and `state_dict` stay what they were. `wide` is a float32 copy of the weight for 16-bit
    types without a matrix kernel: products and sums in float32, one rounding at the end, which is
    also what such kernels do. The copy is packed for oneDNN where torch has it: that kernel is
    twice as fast for few rows as the one for plain weights, and its rows are independent.
    """

    switch: Switch
    wide: Tensor | None
    wide_bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the base class's name)
        if not self.switch.active:
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)  # [M, in]
        out = self.multiply(fill_rows(rows, self.switch.row_multiple))
        return out[: len(rows)].reshape(*input.shape[:-1], self.out_features)

    def multiply(self, rows: Tensor) -> Tensor:
        """[M, in] -> [M, out] with the rows as they are."""
        # one row reads each weight once either way, and the 16-bit weight is half as long
        if self.wide is None or (len(rows) == 1 and self.switch.lone_row):
            return functional.linear(rows, self.weight, self.bias)
        return self.multiply_wide(rows).to(rows.dtype)

    def multiply_wide(self, rows: Tensor) -> Tensor:
        """The float32 result before its one rounding, which would hide most differences."""
        assert self.wide is not None
        if not self.wide.is_mkldnn:
            return functional.linear(rows.float(), self.wide, self.wide_bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.float(), self.wide, self.wide_bias, "none", [], ""
        )
        return out


@dataclass(slots=True)
class Rewrite:
    """What was done to a model's linears when it was loaded."""

    layers: int = 0
    wide_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def calibrate_linears(model: nn.Module, switch: Switch) -> Rewrite:
    """Turn every plain `nn.Linear` of a model into a CalibratedLinear, in place.

    Quantised and other special linears are left as they are. Calling it again refreshes the
    float32 copies, so that changed weights are seen.
    """
    rewrite = Rewrite()
    shared: dict[int, Tensor] = {}
    for module in model.modules():
        if type(module) is nn.Linear or type(module) is CalibratedLinear:
            _convert(module, switch, shared)
            rewrite.layers += 1
    rewrite.wide_bytes = sum(4 * wide.numel() for wide in shared.values())
    if shared:
        rewrite.notes.append(
            f"{rewrite.layers} linears multiply in float32: this CPU has no 16-bit matrix kernel"
        )
    return rewrite


def _convert(module: nn.Module, switch: Switch, shared: dict[int, Tensor]) -> None:
    module.__class__ = CalibratedLinear
    layer: Any = module
    object.__setattr__(layer, "switch", switch)
    object.__setattr__(layer, "wide", None)
    object.__setattr__(layer, "wide_bias", None)
    if lacks_kernel(layer.weight.dtype, layer.weight.device):
        place = layer.weight.data_ptr()
        if place not in shared:
            shared[place] = pack(layer.weight.detach().float())
        object.__setattr__(layer, "wide", shared[place])
        if layer.bias is not None:
            object.__setattr__(layer, "wide_bias", layer.bias.detach().float())


def pack(weight: Tensor) -> Tensor:
    """A float32 weight in oneDNN's own layout, opaque; as it is where torch has no oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def restore_linears(model: nn.Module) -> None:
    """Undo `calibrate_linears`."""
    for module in model.modules():
        if type(module) is CalibratedLinear:
            for name in ("switch", "wide", "wide_bias"):
                object.__delattr__(module, name)
            module.__class__ = nn.Linear  # type: ignore[assignment]


class RoundedRows(TorchFunctionMode):
    """Rounds the rows of every linear that a model calls by itself (routers, GPT-2's layers).

    For transformers' own loop only: intercepting each call costs more than an engine's round may.
    """

    def __init__(self, multiple: int) -> None:
        super().__init__()
        self.multiple = multiple

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            flat = args[0].reshape(-1, args[0].shape[-1])
            out = func(fill_rows(flat, self.multiple), *args[1:], **kwargs)
            return out[: len(flat)].reshape(*args[0].shape[:-1], -1)
        if func is torch.addmm:
            bias, rows, *rest = args
            return func(bias, fill_rows(rows, self.multiple), *rest, **kwargs)[: len(rows)]
        return func(*args, **kwargs)
