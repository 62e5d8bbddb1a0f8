"""Running a deep model with only a few of its layers: enough where layers are alike."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from draftproof.hf.capability import text_config

OF_EACH_KIND = 2  # the second one reads what the first one wrote
SCALARS = (bool, int, float, str, type(None))
NUMBERS = ("layer_idx", "layer_id", "layer_number", "training")  # every layer has its own


@contextlib.contextmanager
def few_layers(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Let only the first two layers of each kind run; the others, given here, hand their input on.

    Layers are of one kind when they are made of the same modules with weights of the same sizes
    and the same settings, and have the same entry in the configuration's `layer_types`. A model
    whose layers are not in one list runs whole.
    """
    layers = decoder_layers(model)
    if not layers:
        yield []
        return
    hand_on = _HandOn()
    hook = layers[0].register_forward_hook(hand_on.learn)
    skipped = list(_repeated(layers, getattr(text_config(model), "layer_types", None)))
    try:
        for layer in skipped:
            layer.forward = hand_on
        yield skipped
    finally:
        hook.remove()
        for layer in skipped:
            del layer.forward


def decoder_layers(model: nn.Module) -> list[Any]:
    """The decoder's layers in order; empty where they are not in one list."""
    count = int(text_config(model).num_hidden_layers)
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return list(next(lists, ()))


def _repeated(layers: list[Any], types: Any) -> Iterator[Any]:
    """Layers of whose kind enough came before."""
    seen: Counter[object] = Counter()
    for index, layer in enumerate(layers):
        kind = _kind(layer), types[index] if types else None
        seen[kind] += 1
        if seen[kind] > OF_EACH_KIND:
            yield layer


def _kind(layer: nn.Module) -> tuple[object, ...]:
    modules = ((type(module), *_settings(module)) for module in layer.modules())
    return (*modules, *(tuple(weight.shape) for weight in layer.parameters()))


def _settings(module: nn.Module) -> Iterator[tuple[str, object]]:
    """What a layer was told about itself: whether it rotates, its window, its scale."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name not in NUMBERS and isinstance(value, SCALARS):
            yield name, value


class _HandOn:
    """A forward that returns its input, in the form in which the model's first layer returns."""

    def __init__(self) -> None:
        self.extras: int | None = None

    def learn(self, module: nn.Module, inputs: object, output: object) -> None:
        self.extras = len(output) - 1 if isinstance(output, tuple) else None

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.extras is None:
            return hidden_states
        return (hidden_states, *[None] * self.extras)
