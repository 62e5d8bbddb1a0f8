"""For tests: tiny random models, a scripted drafter, a tokenizer, comparisons that explain."""

from draftproof.testing.comparing import assert_same_tokens, random_prompts
from draftproof.testing.drafters import ScriptedDrafter
from draftproof.testing.models import (
    ARCHITECTURES,
    VOCAB_SIZE,
    WINDOW,
    Architecture,
    randomise,
    tiny_model,
)
from draftproof.testing.tokenizers import tiny_tokenizer

__all__ = [
    "ARCHITECTURES",
    "VOCAB_SIZE",
    "WINDOW",
    "Architecture",
    "ScriptedDrafter",
    "assert_same_tokens",
    "random_prompts",
    "randomise",
    "tiny_model",
    "tiny_tokenizer",
]
