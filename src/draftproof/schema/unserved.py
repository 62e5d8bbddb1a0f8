"""Fields of OpenAI's and vLLM's requests that cannot be served, and which values ask for nothing.

A client that writes down every default must not fail for it, and one that asks for beams must.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftproof.schema.faults import RequestError

# name -> (values that ask for nothing, besides null; what to say of others)
UNSERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_beam_search": ((False,), "beam search cannot be served; use n with a temperature"),
    "length_penalty": ((1, 1.0), "it belongs to beam search, which cannot be served"),
    "best_of": ((1,), "choosing the best of several cannot be served; use n"),
    "suffix": (("",), "text after the completion (infilling) cannot be served"),
    "audio": ((), "audio cannot be served, only text"),
    "modalities": ((["text"],), "only text can be served"),
    "functions": (([],), "it is superseded by tools"),
    "function_call": (("none",), "it is superseded by tool_choice"),
    "web_search_options": ((), "the web cannot be searched"),
    "service_tier": (("auto", "default"), "there is one tier: leave it out"),
    "store": ((False,), "completions are not stored"),
    "verbosity": (("medium",), "ask for it in the prompt"),
    "moderation": ((), "there is no moderation"),
    "prompt_cache_retention": (("in_memory",), "prompts are cached while they fit"),
    "prompt_embeds": ((), "embeddings cannot be served as prompts; give text or token ids"),
    "logits_processors": (([],), "code cannot be sent; use logit_bias, bad_words or a constraint"),
    "allowed_token_ids": ((), "use structured_outputs or logit_bias"),
    "logprob_token_ids": ((), "use logprobs with top_logprobs"),
    "spaces_between_special_tokens": ((True,), "text is decoded exactly: leave it out"),
    "detokenize": ((True,), "leave it out, and set return_token_ids"),
    "output_kind": ((), "use stream"),
    "flat_logprobs": ((False,), "log-probabilities come in OpenAI's shape"),
    "mm_processor_kwargs": (({},), "only text can be served"),
    "media_io_kwargs": (({},), "only text can be served"),
    "kv_transfer_params": (({},), "caches are not transferred"),
    "ec_transfer_params": (({},), "caches are not transferred"),
    "vllm_xargs": (({},), "there are no further arguments"),
    "extra_args": (({},), "there are no further arguments"),
    "cache_salt": ((), "prefixes are shared without a salt"),
    "priority": ((0,), "requests are served in the order of their arrival"),
    "watermarking": ((False,), "watermarks cannot be served"),
    "repetition_detection": ((), "use max_tokens or repetition_penalty"),
    "thinking_token_budget": ((-1,), "thinking is not told from other text; use max_tokens"),
    "include_reasoning": ((True,), "reasoning is not told from other text"),
    "stream_interval": ((1,), "every round of the engine is sent"),
    "return_prompt_text": ((False,), "use echo, or return_token_ids"),
    "guided_decoding_backend": ((), "there is one"),
    "guided_whitespace_pattern": ((), "whitespace follows the grammar"),
}


def without_unserved(body: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The body without fields that ask for nothing. Raises RequestError for one that asks.

    known: fields that this kind of request has; they are left as they are
    """
    kept = {}
    for name, value in body.items():
        if name in known or name not in UNSERVED:
            kept[name] = value
            continue
        neutral, why = UNSERVED[name]
        if value is not None and not any(_same(value, other) for other in neutral):
            raise RequestError(f"{name}: {why}", param=name)
    return kept


def _same(value: Any, other: Any) -> bool:
    """Equal, and not only because True == 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
