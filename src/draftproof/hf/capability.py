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


def unwrapped(model: Any) -> Any:
    """The transformers model itself, where adapters are wrapped around it.

    Raises UnsupportedModelError for adapters that put something in front of the prompt.
    """
    refuse_virtual_tokens(model)
    return (
        model.get_base_model()
        if hasattr(model, "peft_config") and hasattr(model, "get_base_model")
        else model
    )


def refuse_virtual_tokens(model: Any) -> None:
    """Prompt, prefix and p-tuning: `generate` of the model, or of what wraps it, prepends them."""
    prepare = vars(model).get("prepare_inputs_for_generation")
    for owner in (model, getattr(prepare, "__self__", None)):
        config = getattr(owner, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"{type(owner).__name__}: {type(config).__name__} puts virtual tokens in front of "
                "every prompt, which is not supported; decode it with transformers' own generate"
            )


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
        raise UnsupportedModelError(
            f"{name}: its forward takes no position_ids; it derives positions from "
            "the cache or from the mask, which have one length for all rows"
        )
