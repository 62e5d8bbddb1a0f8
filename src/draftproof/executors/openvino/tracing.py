"""From a transformers model to an OpenVINO graph, by tracing it with attention left open.

The model runs once as an executor runs it, on flat ids and positions. Attention is handed over
through the same interface that the PyTorch executors use, so that no pattern of operations has to
be recognised in the graph, and every model that can be bound can be converted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from openvino._offline_transformations import apply_moc_transformations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch import ConversionExtension
from torch import Tensor, nn

from draftproof.errors import UnsupportedModelError
from draftproof.executors.openvino.graph import PagedLayer, stand_in
from draftproof.hf import BoundModel, SlotCache
from draftproof.numerics.attention import AttentionShape
from draftproof.numerics.shapes import FAST, Shapes
from draftproof.numerics.torch_private import TRACE, has

OPERATION = "draftproof::attention"
EXAMPLE = 3  # tokens of the example that is traced


@functools.cache
def _open_attention() -> Any:
    """The PyTorch operation that stands where attention belongs; registered once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # custom operations are experimental in PyTorch
        operation = torch.library.custom_op(OPERATION, _blank, mutates_args=())
        operation.register_fake(_blank)
        return operation


def _blank(query: Tensor, key: Tensor, value: Tensor, number: int, heads: int, dim: int) -> Tensor:
    return query.new_zeros(query.shape[0], 1, heads, dim)


@dataclass
class TracedLayout:
    """A `Layout` that records what each attention layer is and leaves the attention open.

    Tokens are the first axis and the second one has length 1, so that heads follow one another in
    memory on both sides of attention and nothing has to be transposed.
    """

    shapes: Shapes = FAST
    layers: list[PagedLayer] = field(default_factory=list)
    _new: tuple[Tensor, Tensor] | None = None

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep the new keys and values, [N, kv_heads, 1, D], for `attend`."""
        self._new = key, value

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [N, heads, 1, D] -> [N, 1, heads, D], with the keys and values kept."""
        assert self._new is not None
        key, value = self._new
        number = len(self.layers)
        layer = PagedLayer(
            heads=int(query.shape[1]),  # while tracing a size is a tensor
            kv_heads=int(key.shape[1]),
            key_dim=int(key.shape[-1]),
            value_dim=int(value.shape[-1]),
            scale=float(shape.scaling),
            window=int(shape.window or 0),
        )
        self.layers.append(layer)
        out = torch.ops.draftproof.attention(
            query.reshape(-1, layer.heads * layer.key_dim),
            key.reshape(-1, layer.kv_heads * layer.key_dim),
            value.reshape(-1, layer.kv_heads * layer.value_dim),
            number,
            layer.heads,
            layer.value_dim,
        )
        return cast(Tensor, out)


@contextlib.contextmanager
def _named(bound: BoundModel) -> Iterator[None]:
    """What PyTorch and OpenVINO raise when a model cannot be traced, as our own error."""
    try:
        yield
    except RuntimeError as error:
        name = type(bound.model).__name__
        raise UnsupportedModelError(
            f"{name}: cannot be traced for OpenVINO; use executor='torch': {error}"
        ) from error


def _refuse_unsupported(bound: BoundModel) -> None:
    name = type(bound.model).__name__
    for shape in (case.shape for case in bound.attention_cases):
        for part in ("softcap", "sinks"):
            if getattr(shape, part) is not None:
                raise UnsupportedModelError(
                    f"{name}: attention with {part}, which cannot be handed to OpenVINO's paged "
                    "attention; use executor='torch'"
                )
    _refuse_experts(bound.model)


class Flat(nn.Module):
    """A model as a function of flat ids and positions [N] to the logits [N, V] of all tokens."""

    def __init__(self, bound: BoundModel) -> None:
        super().__init__()
        self.model = bound.model
        self.layout = TracedLayout()
        self._bound = [bound]  # in a list: not a part of the module

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Traced; not for use."""
        bound, layout = self._bound[0], self.layout
        layout.layers.clear()  # tracing may call more than once
        blank = [torch.empty(0)] * len(bound.layers)
        cache = SlotCache(blank, blank)
        cache.layout = layout
        # 0: of all columns; models without the argument compute all, and this selects them
        slices = "logits_to_keep" in inspect.signature(bound.model.forward).parameters
        every: Any = 0 if slices else torch.zeros(1, dtype=torch.int64)
        logits = bound.forward(input_ids[:, None], position_ids[:, None], cache, layout, every)
        return logits.reshape(-1, bound.vocab_size)


def trace(bound: BoundModel) -> tuple[Any, list[PagedLayer]]:
    """A graph with stand-ins for attention, and the layers that they stand for.

    The graph shares its weights with the model, which must outlive it.
    Raises UnsupportedModelError for models whose computation depends on values, not only shapes.
    """
    _refuse_unsupported(bound)
    _open_attention()
    flat = Flat(bound)
    example = torch.arange(EXAMPLE) % bound.vocab_size, torch.arange(EXAMPLE)
    front = FrontEndManager().load_by_framework("pytorch")
    for name, translate in (
        (OPERATION, functools.partial(_translate, flat.layout)),
        (f"{OPERATION.replace('::', '.')}.default", functools.partial(_translate, flat.layout)),
        ("aten::atleast_2d", _first_input),  # ids are two-dimensional already
    ):
        front.add_extension(ConversionExtension(name, translate))
    with warnings.catch_warnings(), torch.no_grad(), _named(bound):
        warnings.simplefilter("ignore")  # tracing warns about every shape that is looked at
        decoder = (_traced if has(TRACE) else _exported)(flat, example)
        model = front.convert(front.load(decoder))
        # among others: shapes taken from another tensor become constants with a hole
        apply_moc_transformations(model, cf=False)
    model.draftproof_decoder = decoder  # holds the weights
    return model, flat.layout.layers


def _traced(flat: Flat, example: tuple[Tensor, Tensor]) -> Any:
    """The model as OpenVINO reads it, by torch.jit.trace."""
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    return TorchScriptPythonDecoder(flat, example_input=example)


def _exported(flat: Flat, example: tuple[Tensor, Tensor]) -> Any:
    """The same by torch.export."""
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    tokens = torch.export.Dim("tokens", min=2)  # 1 would be taken for a constant
    sizes = ({0: tokens}, {0: tokens})
    program = torch.export.export(flat, example, dynamic_shapes=sizes, strict=False)
    with _quiet():
        return TorchFXPythonDecoder.from_exported_program(program)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without OpenVINO's notes about operations that this PyTorch does not decompose anyway."""

    def wanted(record: logging.LogRecord) -> bool:
        return "not found in decomp table" not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(wanted)
    try:
        yield
    finally:
        root.removeFilter(wanted)


def _refuse_experts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(p.dim() == 3 for p in module.parameters(recurse=False)):
            raise UnsupportedModelError(
                f"{name} ({type(module).__name__}): experts are chosen by the values of their "
                "input, which a traced graph does not follow; use executor='torch'"
            )


def _translate(layout: TracedLayout, context: Any) -> list[Any]:
    query, key, value = (context.get_input(index) for index in range(3))
    number = int(context.get_values_from_const_input(3))
    outputs: list[Any] = stand_in(layout.layers[number], number, query, key, value).outputs()
    return outputs


def _first_input(context: Any) -> list[Any]:
    return [context.get_input(0)]
