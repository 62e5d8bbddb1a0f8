"""For tests: tiny random models, a scripted drafter, a tokenizer, comparisons that explain."""

from draftproof.testing.comparing import assert_same_tokens, random_prompts
from draftproof.testing.drafters import ScriptedDrafter
from draftproof.testing.engines import (
    Recorder,
    assert_cache_is_fresh,
    prepared,
    scored_run,
)
from draftproof.testing.models import (
    ARCHITECTURES,
    VOCAB_SIZE,
    WINDOW,
    Architecture,
    noisy_copy,
    randomise,
    tiny_model,
)
from draftproof.testing.oracle import Oracle, cut_at, stock_generate
from draftproof.testing.tokenizers import tiny_tokenizer

__all__ = [
    "ARCHITECTURES",
    "VOCAB_SIZE",
    "WINDOW",
    "Architecture",
    "Oracle",
    "Recorder",
    "ScriptedDrafter",
    "assert_cache_is_fresh",
    "assert_same_tokens",
    "cut_at",
    "noisy_copy",
    "prepared",
    "random_prompts",
    "randomise",
    "scored_run",
    "stock_generate",
    "tiny_model",
    "tiny_tokenizer",
]
