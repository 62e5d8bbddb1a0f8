"""From a transformers model to an OpenVINO graph, by tracing it with attention left open.

The model runs once as an executor runs it, on flat ids and positions. Attention is handed over
through the same interface that the PyTorch executors use, so that no pattern of operations has to
be recognised in the graph, and every model that can be bound can be converted.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch import ConversionExtension
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import Tensor, nn

from draftproof.errors import UnsupportedModelError
from draftproof.executors.openvino.graph import PagedLayer, stand_in
from draftproof.hf import BoundModel, SlotCache
from draftproof.numerics.attention import AttentionShape
from draftproof.numerics.shapes import FAST, Shapes

EXAMPLE = 3  # tokens of the example that is traced


@functools.cache
def _open_attention() -> Any:
    """The PyTorch operation that stands where attention belongs; registered once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # custom operations are experimental in PyTorch
        return torch.library.custom_op("draftproof::attention", _blank, mutates_args=())


def _blank(query: Tensor, key: Tensor, value: Tensor, width: int, number: int) -> Tensor:
    return query.new_zeros(query.shape[0], width)


@dataclass
class TracedLayout:
    """A `Layout` that records what each attention layer is and leaves the attention open."""

    shapes: Shapes = FAST
    layers: list[PagedLayer] = field(default_factory=list)
    _new: tuple[Tensor, Tensor] | None = None

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep the new keys and values, [1, kv_heads, N, D], for `attend`."""
        self._new = key, value

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [1, heads, N, D] -> [1, N, heads, D], of the kept keys and values."""
        assert self._new is not None
        key, value = self._new
        number = len(self.layers)
        heads, width = query.shape[1], query.shape[1] * value.shape[-1]
        self.layers.append(
            PagedLayer(
                heads=heads,
                kv_heads=key.shape[1],
                key_dim=key.shape[-1],
                value_dim=value.shape[-1],
                scale=float(shape.scaling),
                window=int(shape.window or 0),
            )
        )
        out = torch.ops.draftproof.attention(_flat(query), _flat(key), _flat(value), width, number)
        return out.reshape(1, -1, heads, value.shape[-1])


def _refuse_unsupported(bound: BoundModel) -> None:
    name = type(bound.model).__name__
    for shape in (case.shape for case in bound.attention_cases):
        for part in ("softcap", "sinks"):
            if getattr(shape, part) is not None:
                raise UnsupportedModelError(
                    f"{name}: attention with {part}, which OpenVINO's paged attention does not "
                    "compute; use executor='torch'"
                )
    _refuse_experts(bound.model)


def _flat(tensor: Tensor) -> Tensor:
    """[1, heads, N, D] -> [N, heads * D]"""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1] * tensor.shape[3])


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
        # 0: of all tokens; models without the argument compute all, and this selects them
        slices = "logits_to_keep" in inspect.signature(bound.model.forward).parameters
        every: Any = 0 if slices else torch.arange(input_ids.shape[0])
        logits = bound.forward(input_ids[None], position_ids[None], cache, layout, every)
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
        ("draftproof::attention", functools.partial(_translate, flat.layout)),
        ("aten::atleast_2d", _first_input),  # ids are two-dimensional already
    ):
        front.add_extension(ConversionExtension(name, translate))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns about every shape that is looked at
        decoder = TorchScriptPythonDecoder(flat, example_input=example)
        model = front.convert(front.load(decoder))
    model.draftproof_decoder = decoder  # holds the weights
    return model, flat.layout.layers


def _refuse_experts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(p.dim() == 3 for p in module.parameters(recurse=False)):
            raise UnsupportedModelError(
                f"{name} ({type(module).__name__}): experts are chosen by the values of their "
                "input, which a traced graph does not follow; use executor='torch'"
            )


def _translate(layout: TracedLayout, context: Any) -> list[Any]:
    query, key, value = (context.get_input(index) for index in range(3))
    number = int(context.get_values_from_const_input(4))
    return stand_in(layout.layers[number], number, query, key, value).outputs()


def _first_input(context: Any) -> list[Any]:
    return [context.get_input(0)]
