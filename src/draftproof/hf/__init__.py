"""The only room that touches transformers' internals.

Supported: transformers 4.57 up to the newest. What moved between the versions and is bridged here:
the cache keyword (`past_key_values` until 5.23, `cache` since), `Cache.update`'s extra arguments,
experts as one module with an interface of its own (5.0), models without `logits_to_keep`, and the
arguments that `generate` keeps back from a custom function.
"""

from draftproof.hf.bound import BoundModel, Change, bound_already, same_numerics
from draftproof.hf.caches import LayerKV, SlotCache
from draftproof.hf.kernels import Layout
from draftproof.hf.loading import (
    decoder_only_output,
    default_eos,
    further_criteria,
    generate_arguments,
    hide_progress_bars,
    load_model,
    load_tokenizer,
    unapplied_defaults,
)
from draftproof.hf.watching import Watch

__all__ = [
    "BoundModel",
    "Change",
    "Layout",
    "LayerKV",
    "SlotCache",
    "Watch",
    "bound_already",
    "decoder_only_output",
    "default_eos",
    "further_criteria",
    "generate_arguments",
    "hide_progress_bars",
    "load_model",
    "load_tokenizer",
    "same_numerics",
    "unapplied_defaults",
]
