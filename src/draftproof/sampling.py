"""What one request asks for; settings may differ in every row of a batch.

Nothing here imports torch. How the settings act on logits is told in `processing`.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from draftproof.errors import InputError

Ids = tuple[int, ...]
# (input_ids [1, length] int64, scores [1, V] float32) -> scores [1, V], as in transformers
Processor = Callable[[Any, Any], Any]
# (input_ids [1, length] int64, scores) -> whether the row ends, as in transformers
Criterion = Callable[..., Any]


class Coupling(StrEnum):
    """How the random numbers of draft and target hang together.

    SEEDED:     both take the same ones, keyed by (seed, request, position): a speculative row is
                the plain row of that seed, token for token
    REJECTION:  classical speculative sampling: the same distribution, the highest acceptance
    """

    SEEDED = "seeded"
    REJECTION = "rejection"


def as_ids(value: int | Iterable[int] | None) -> Ids:
    """Normalise `eos_token_id` as transformers takes it: none, one id, or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(item) for item in value)


def as_strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Normalise `stop_strings`: none, one string, or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of one request, in transformers' names where it has one.

    temperature:         0 is greedy, whatever `do_sample` says
    top_k, top_p, min_p: 0, 1 and 0 switch them off; they act on sampled rows only
    seed, coupling:      see `Coupling`
    presence_penalty, frequency_penalty: OpenAI's; they count generated tokens only
    sequence_bias:       (ids, bias) pairs: the bias is added to the last id where the ids before
                         it end the prefix; OpenAI's `logit_bias` is pairs with one id
    logits_processor:    called for one row and one position at a time, see `verifiers`
    logprobs:            log-probabilities of the raw logits: the emitted token's and the top n's
    output_scores, output_logits: keep the processed scores and the raw logits, [V] per token
    output_checksums: keep a checksum of the raw logits' bits per token, for audits

    Raises InputError when a number is out of range or a stop string is empty.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    eos_token_id: Ids = ()
    stop_strings: tuple[str, ...] = ()
    stopping_criteria: tuple[Criterion, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    coupling: Coupling = Coupling.SEEDED
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    sequence_bias: tuple[tuple[Ids, float], ...] = ()
    bad_words_ids: tuple[Ids, ...] = ()
    no_repeat_ngram_size: int = 0
    logits_processor: tuple[Processor, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    output_scores: bool = False
    output_logits: bool = False
    output_checksums: bool = False

    def __post_init__(self) -> None:
        _check_numbers(self)
        if any(not stop for stop in self.stop_strings):
            raise InputError("stop_strings holds an empty string, which would stop every row")
        for name in ("sequence_bias", "bad_words_ids"):
            words = [pair[0] for pair in self.sequence_bias]
            if not all(words if name == "sequence_bias" else self.bad_words_ids):
                raise InputError(f"{name} holds an empty list of ids")

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.do_sample and self.temperature > 0

    @property
    def drawn_from_draft(self) -> bool:
        """Whether verification needs the distribution that the drafts were drawn from."""
        return self.sampled and self.coupling is Coupling.REJECTION

    @property
    def processed(self) -> bool:
        """Whether the scores differ from the logits in more than an early eos."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.sequence_bias
            or self.bad_words_ids
            or self.no_repeat_ngram_size
            or self.logits_processor
        )

    @property
    def plain(self) -> bool:
        """Whether the argmax of the logits is all that is asked for."""
        return not (self.sampled or self.processed or self.output_scores)

    @property
    def recorded(self) -> bool:
        """Whether anything is to be kept of each emitted token besides its id."""
        return (
            self.output_scores
            or self.output_logits
            or self.output_checksums
            or self.logprobs is not None
        )


# name -> (allowed, what is allowed)
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: value >= 0, "0 or more"),
    "min_new_tokens": (lambda value: value >= 0, "0 or more"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 (greedy) or more"),
    "top_k": (lambda value: value >= 0, "0 (off) or more"),
    "top_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "more than 0"),
    "presence_penalty": (math.isfinite, "a number"),
    "frequency_penalty": (math.isfinite, "a number"),
    "no_repeat_ngram_size": (lambda value: value >= 0, "0 (off) or more"),
    "logprobs": (lambda value: value is None or value >= 0, "none, 0 or more"),
    "prompt_logprobs": (lambda value: value is None or value >= 0, "none, 0 or more"),
}


WHOLE = {
    "max_new_tokens",
    "min_new_tokens",
    "top_k",
    "no_repeat_ngram_size",
    "logprobs",
    "prompt_logprobs",
}


def _check_numbers(settings: Settings) -> None:
    for name, (allowed, wording) in RANGES.items():
        value = getattr(settings, name)
        if value is None:
            continue
        if name in WHOLE:
            whole_number(name, value)
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not allowed(value):
            raise InputError(f"{name} must be {wording}, got {value!r}")


def probability(name: str, value: Any) -> float:
    """A number between 0 and 1. Raises InputError, naming the option."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) <= 1:
        raise InputError(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """A whole number of any kind (numpy's too), and neither True nor 2.0.

    Raises InputError, naming the option.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and found < least:
        raise InputError(f"{name} must be {least} or more, got {value!r}")
    return found
