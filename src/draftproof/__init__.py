"""Correct batched speculative decoding: the output is exactly what the target alone would write."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.api import Pair, load
    from draftproof.dropin import custom_generate, release
    from draftproof.errors import (
        AuditError,
        DraftproofError,
        InputError,
        NumericsError,
        OutOfMemoryError,
        UnsupportedArgumentError,
        UnsupportedModelError,
        VocabularyError,
    )
    from draftproof.options import Options
    from draftproof.types import (
        Audit,
        AuditOutcome,
        FinishReason,
        Result,
        SpecStats,
        StreamEvent,
        TokenLogprob,
    )

__version__ = "0.1.0"

# imported on first use, so that `import draftproof` does not load torch
_HOMES = {
    "Audit": "types",
    "AuditError": "errors",
    "AuditOutcome": "types",
    "DraftproofError": "errors",
    "FinishReason": "types",
    "InputError": "errors",
    "NumericsError": "errors",
    "Options": "options",
    "OutOfMemoryError": "errors",
    "Pair": "api",
    "Result": "types",
    "SpecStats": "types",
    "StreamEvent": "types",
    "TokenLogprob": "types",
    "UnsupportedArgumentError": "errors",
    "UnsupportedModelError": "errors",
    "VocabularyError": "errors",
    "custom_generate": "dropin",
    "load": "api",
    "release": "dropin",
}

__all__ = [
    "Audit",
    "AuditError",
    "AuditOutcome",
    "DraftproofError",
    "FinishReason",
    "InputError",
    "NumericsError",
    "Options",
    "OutOfMemoryError",
    "Pair",
    "Result",
    "SpecStats",
    "StreamEvent",
    "TokenLogprob",
    "UnsupportedArgumentError",
    "UnsupportedModelError",
    "VocabularyError",
    "custom_generate",
    "load",
    "release",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
