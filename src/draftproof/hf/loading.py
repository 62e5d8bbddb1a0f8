"""transformers' own doors: loading, defaults, and the `generate` call this package runs inside."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    GenerationMixin,
    MaxLengthCriteria,
)
from transformers.utils import logging

from draftproof.hf.capability import text_config


def load_model(name: str, *, dtype: str, device: str, model_kwargs: dict[str, Any]) -> Any:
    """`AutoModelForCausalLM.from_pretrained`, in evaluation mode, on `device`."""
    options = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype), **model_kwargs}
    model = AutoModelForCausalLM.from_pretrained(name, **options)
    # a device map or a quantiser has already placed the weights
    return (model if "device_map" in options else model.to(device)).eval()


def hide_progress_bars() -> None:
    """No bars while weights load, whatever the environment says."""
    logging.disable_progress_bar()


def load_tokenizer(name: str, **kwargs: Any) -> Any:
    """`AutoTokenizer.from_pretrained`."""
    return AutoTokenizer.from_pretrained(name, **kwargs)


def default_eos(model: Any) -> int | Sequence[int] | None:
    """The eos id or ids that `model.generate` would use."""
    value: int | Sequence[int] | None = model.generation_config.eos_token_id
    return value if value is not None else getattr(text_config(model), "eos_token_id", None)


def generate_arguments(names: Sequence[str]) -> dict[str, Any]:
    """Arguments of the `generate` call that is running, None for those not given.

    transformers drops `assistant_model` and `streamer` when `custom_generate` is a callable, and
    hands them over in no other way: they are read where its own `generate` keeps them. That is told
    by its code, not by its name, so that no other function is mistaken for it.
    """
    own = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is own:
            return {name: frame.f_locals.get(name) for name in names}
        frame = frame.f_back
    return dict.fromkeys(names)


def further_criteria(criteria: Any) -> list[Any]:
    """The stopping criteria that are more than length and eos."""
    known = (MaxLengthCriteria, EosTokenCriteria)
    return [item for item in criteria or () if not isinstance(item, known)]


def decoder_only_output(**fields: Any) -> Any:
    """transformers' own output class."""
    return GenerateDecoderOnlyOutput(**fields)
