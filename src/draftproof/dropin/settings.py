"""What becomes of every field of a `GenerationConfig`: none is ignored silently."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from draftproof.errors import UnsupportedArgumentError

# read by `custom_generate` itself
READ = {
    "do_sample",
    "eos_token_id",
    "max_matching_ngram_size",
    "num_return_sequences",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
}
# made into lengths, processors and criteria by `generate`, before it hands over
PREPARED = {
    "bad_words_ids",
    "begin_suppress_tokens",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "watermarking_config",
}
# of the draft model, read from its own configuration; the last two serve other vocabularies only
OF_THE_DRAFT = {
    "assistant_confidence_threshold",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_lookbehind",
    "target_lookbehind",
}
# how transformers would compute what is computed here in another way, with the same outcome
WITHOUT_EFFECT = {
    "_from_model_config",
    "bos_token_id",  # the prompt's, where there is no prompt
    "cache_config",
    "compile_config",
    "decoder_start_token_id",  # of encoder-decoders
    "disable_compile",
    "max_cache_len",
    "prefill_chunk_size",
    "transformers_version",
    "use_cache",
    # of beam search alone, which `num_beams` refuses
    "diversity_penalty",
    "early_stopping",
    "length_penalty",
    "num_beam_groups",
}
# what would change the text or the outputs, and the values that ask for nothing
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "assistant_early_exit": (None,),
    "assistant_ensemble_weight": (None, 0.0),
    "cache_implementation": (None, "dynamic", "dynamic_full"),
    "constraints": (None,),
    "continuous_batching_config": (None,),
    "dola_layers": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1.0),
    "low_memory": (None, False),
    "num_beams": (None, 1),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "penalty_alpha": (None,),
    "speculation_type": (None,),
    "token_healing": (None, False),
    "use_mtp": (None, False),
}
KNOWN = READ | PREPARED | OF_THE_DRAFT | WITHOUT_EFFECT | NEUTRAL.keys()
MARKS = {
    "_mask_length",
    "_commit_hash",
    "_original_object_hash",
}  # that `generate` leaves for itself


def refuse_settings(config: Any) -> None:
    """Raise UnsupportedArgumentError, naming the setting, for what is not done here.

    Also for a setting that is not known: a later release of transformers may have brought it.
    """
    for name, allowed in NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in allowed:
            raise UnsupportedArgumentError(f"{name}={value!r} is not supported by custom_generate")
    for name, value in vars(config).items():
        prepared = name.startswith("_") and (name.endswith("_tensor") or name in MARKS)
        if name not in KNOWN and not prepared and value is not None and value is not False:
            raise UnsupportedArgumentError(f"{name}={value!r} is not known to custom_generate")


def warn_of_context(context: int | None, rows: Sequence[Sequence[int]], new: int) -> None:
    """Say that rows end where the context does; transformers' own loop runs on beyond it."""
    longest = max(map(len, rows))
    if context is not None and longest + new > context + 1:
        warnings.warn(
            f"rows end at the model's context of {context} tokens: of the {new} new tokens asked "
            f"for, a prompt of {longest} leaves room for {max(0, context + 1 - longest)}",
            stacklevel=4,
        )
