"""Errors a user can meet. Each message names the culprit and the remedy."""


class DraftproofError(Exception):
    """Base class of everything this package raises on purpose."""


class InputError(DraftproofError, ValueError):
    """A prompt or a setting cannot be used as given."""


class UnsupportedModelError(DraftproofError, ValueError):
    """A model cannot be decoded correctly here; the message names the layer or setting."""


class UnsupportedArgumentError(DraftproofError, ValueError):
    """An argument of `generate` that would be ignored is refused instead."""


class VocabularyError(DraftproofError, ValueError):
    """Target and draft do not share one vocabulary."""


class OutOfMemoryError(DraftproofError, MemoryError):
    """The KV cache asked for does not fit; the message says what would."""


class NumericsError(DraftproofError, RuntimeError):
    """`numerics="exact"` cannot be promised here; the message names the operation."""


class AuditError(DraftproofError, RuntimeError):
    """An audited output is not what the target alone writes: a bug in draftproof; report it."""


class InvariantError(DraftproofError, AssertionError):
    """An internal invariant is broken: a bug in draftproof, never a user's mistake."""
