"""The transformers door: `model.generate(..., custom_generate=draftproof.custom_generate)`.

`generate` prepares its inputs, settings, processors and criteria as always and then hands over;
rows come back padded as `generate` pads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof.api import Pair
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.hf import decoder_only_output, generate_arguments, plain_criteria
from draftproof.sampling import as_ids

# model inputs that `generate` prepares for its own loop and that this one derives itself
DERIVED = {
    "attention_mask",
    "position_ids",
    "cache_position",
    "use_cache",
    "logits_to_keep",
    "num_logits_to_keep",
    "cache",
    "past_key_values",
}
# settings that change the text or the outputs and that greedy decoding here does not implement
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False, None),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "penalty_alpha": (None,),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1.0),
    "output_scores": (False, None),
    "output_logits": (False, None),
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),
    "cache_implementation": (None, "dynamic", "dynamic_full"),
    "token_healing": (False, None),
    "max_time": (None,),
}

HONOURED = {"MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"}


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    assistant_model: Any = None,
    max_num_seqs: int | None = None,
    num_speculative_tokens: int | None = None,
    numerics: str = "auto",
    **model_kwargs: Any,
) -> Any:
    """Batched speculative decoding behind transformers' `generate`, for any batch size.

    input_ids:        [B, L] int64, left-padded; `attention_mask` says where rows begin
    assistant_model:  the draft, as in `generate`; or `prompt_lookup_num_tokens` for n-gram drafts
    num_speculative_tokens: K; default `num_assistant_tokens` of the draft's generation config,
                      `prompt_lookup_num_tokens`, or 4
    max_num_seqs:     rows decoded at a time; default: the whole batch

    Returns what `generate` returns: [B, L + longest] ids, finished rows padded with the pad id, or
    a `GenerateDecoderOnlyOutput` with `return_dict_in_generate=True`.
    Raises UnsupportedArgumentError, by name, for whatever would change the output and is not done.
    """
    # generate() keeps these back from callables, and hands them only to its own modes
    given = generate_arguments(("assistant_model", "streamer"))
    assistant_model = assistant_model if assistant_model is not None else given["assistant_model"]
    _refuse(generation_config, logits_processor, stopping_criteria, given, model_kwargs)
    draft, drafted = _draft(assistant_model, generation_config, num_speculative_tokens)
    prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
    pair = Pair(
        model,
        draft,
        numerics=numerics,
        prompt_lookup_max=getattr(generation_config, "max_matching_ngram_size", None) or 2,
    )
    room = generation_config.max_length - input_ids.shape[1]
    results = pair.generate(
        prompts,
        max_new_tokens=room,
        min_new_tokens=_min_new_tokens(generation_config, input_ids.shape[1]),
        eos_token_id=as_ids(generation_config.eos_token_id),
        max_num_seqs=max_num_seqs or len(prompts),
        num_speculative_tokens=drafted,
    )
    new = [result.token_ids for result in results]
    return _returned(input_ids, new, generation_config)


def _refuse(
    config: Any, processors: Any, criteria: Any, given: dict[str, Any], model_kwargs: dict[str, Any]
) -> None:
    for name, allowed in NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in allowed:
            raise UnsupportedArgumentError(f"{name}={value!r} is not supported by custom_generate")
    for processor in processors or ():
        if type(processor).__name__ not in (
            "MinLengthLogitsProcessor",
            "MinNewTokensLengthLogitsProcessor",
        ):
            raise UnsupportedArgumentError(
                f"logits processor {type(processor).__name__} is not supported by custom_generate"
            )
    for criterion in plain_criteria(criteria):
        raise UnsupportedArgumentError(
            f"stopping criterion {criterion} is not supported by custom_generate"
        )
    if given["streamer"] is not None:
        raise UnsupportedArgumentError("streamer is not supported by custom_generate")
    unknown = {name for name, value in model_kwargs.items() if value is not None} - DERIVED
    if unknown:
        raise UnsupportedArgumentError(
            f"{', '.join(sorted(unknown))} not supported by custom_generate"
        )
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise UnsupportedArgumentError(f"{name} with content is not supported")


def _draft(assistant: Any, config: Any, wish: int | None) -> tuple[Any, int]:
    """The drafter and K, from the arguments transformers itself knows."""
    lookup = getattr(config, "prompt_lookup_num_tokens", None)
    if assistant is not None:
        own = getattr(assistant.generation_config, "num_assistant_tokens", None)
        return assistant, _first(wish, own, 4)
    if lookup is not None:
        return "ngram", _first(wish, lookup)
    return None, 0


def _first(*values: int | None) -> int:
    return next(int(value) for value in values if value is not None)


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Rows without their padding. The mask alone says what is padding, never a token's id."""
    if mask is None:
        rows: list[list[int]] = input_ids.tolist()
        return rows
    visible = mask.bool()
    if bool((visible.int().diff(dim=1) < 0).any()):
        raise InputError("attention_mask: rows must be padded on the left, without holes")
    if not bool(visible.any(dim=1).all()):
        raise InputError("attention_mask: a row is all padding")
    return [ids[keep].tolist() for ids, keep in zip(input_ids, visible, strict=True)]


def _min_new_tokens(config: Any, width: int) -> int:
    """`min_new_tokens`, or what is left of `min_length` (which counts the padded prompt)."""
    length = max(0, (config.min_length or 0) - width)
    return max(config.min_new_tokens or 0, length)


def _returned(input_ids: Tensor, new: Sequence[list[int]], config: Any) -> Any:
    width = max(map(len, new), default=0)
    pad = config.pad_token_id
    if pad is None:
        pad = next(iter(as_ids(config.eos_token_id)), 0)
    padded = [ids + [pad] * (width - len(ids)) for ids in new]
    tail = torch.tensor(padded, dtype=input_ids.dtype, device=input_ids.device)
    sequences = torch.cat([input_ids, tail.reshape(len(new), width)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return decoder_only_output(sequences=sequences)
