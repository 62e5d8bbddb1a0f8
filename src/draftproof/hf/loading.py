"""transformers' own doors: loading, defaults, and the `generate` call this package runs inside."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
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


# settings of a checkpoint's generation_config.json that change the text, and what changes nothing
CHANGES_TEXT: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "do_sample": (False,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "min_new_tokens": (0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": (),
    "stop_strings": (),
    "suppress_tokens": (),
    "temperature": (1.0,),
    "top_h": (),
    "top_k": (0,),
    "top_p": (1.0,),
    "typical_p": (1.0,),
}


def unapplied_defaults(model: Any) -> dict[str, Any]:
    """What a checkpoint's generation_config.json would make `model.generate` do to the text.

    None of it is done here: a call says what it wants.
    """
    config, usual = getattr(model, "generation_config", None), GenerationConfig()
    found = {name: getattr(config, name, None) for name in CHANGES_TEXT}
    return {
        name: value
        for name, value in found.items()
        if value is not None
        and value not in CHANGES_TEXT[name]
        and value != getattr(usual, name, None)
    }


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
