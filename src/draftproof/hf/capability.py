"""Which models can be decoded row by row; all others are refused by name, before any forward."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from draftproof.errors import UnsupportedModelError

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


def text_config(model: nn.Module) -> Any:
    """The configuration of the decoder itself."""
    config: Any = model.config
    return config.get_text_config(decoder=True)


def refuse_unsupported(model: nn.Module) -> None:
    """Raise UnsupportedModelError, naming the culprit, before any forward runs."""
    config, name = text_config(model), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name}: encoder-decoder models are not supported")
    for index, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in SUPPORTED_LAYERS:
            raise UnsupportedModelError(
                f"{name}: layer {index} is {kind!r}; only {sorted(SUPPORTED_LAYERS)} keep one "
                "entry per token that can be rolled back"
            )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(f"{name}: layers with a recurrent state cannot be rolled back")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(f"{name}: its forward takes no position_ids (ALiBi?)")
    _refuse_length_dependent_rope(config, name)


def _refuse_length_dependent_rope(config: Any, name: str) -> None:
    """Frequencies that follow the longest row of a batch make rows depend on their neighbours."""
    rope = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    for settings in nested:
        kind = settings.get("rope_type", settings.get("type"))
        if kind in ("dynamic", "longrope"):
            raise UnsupportedModelError(
                f"{name}: rope_type {kind!r} changes a row's frequencies with the longest row of "
                "the batch; load it with another rope_scaling"
            )
