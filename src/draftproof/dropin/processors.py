"""What `generate`'s list of logits processors says, as settings where that is possible.

Settings act on all positions at once, and on the drafts too. What has no setting, or stands at
another place in the list than the stage with its name, is called as it is, position by position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from draftproof.callables import bound
from draftproof.errors import UnsupportedArgumentError

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What the processors of a call are read against.

    padding:  tokens of padding before each prompt
    pad:      the id used for it
    eos:      ids that end a row
    width:    tokens of a padded prompt
    sampled:  do_sample
    """

    padding: Sequence[int]
    pad: int
    eos: tuple[int, ...]
    width: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for `Pair.generate`, and the processors that are called as they are, in order."""

    options: Options = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)


def read(processors: Sequence[Any], context: Context) -> Reading:
    """Cut the list in three: penalties with a setting, others, warpers with a setting.

    bias  penalty  USER  temperature  top_k             others: USER
    penalty  temperature  top_k  TYPICAL                others: temperature, top_k, TYPICAL
    USER  penalty                                       others: USER, penalty
    """
    known = [_as_setting(processor, context) for processor in processors]
    head = _rising(known, PENALTY_NAMES)
    tail = _rising(known[len(head) :][::-1], WARPER_NAMES[::-1])
    others = list(processors)[len(head) : len(known) - len(tail)]
    options: Options = {}
    for _, option in (*head, *tail):
        least = max(option.get("min_new_tokens", 0), options.get("min_new_tokens", 0))
        options |= option | ({"min_new_tokens": least} if least else {})
    return Reading(options, others)


Known = tuple[str, Options]


def _rising(known: Sequence[Known | None], names: Sequence[str]) -> list[Known]:
    """The longest start of `known` whose names come in the order of `names`, each once."""
    places = [names.index(item[0]) if item and item[0] in names else -1 for item in known]
    before = [-1, *places]
    rising = takewhile(lambda i: places[i] > before[i], range(len(places)))
    return [item for i in rising if (item := known[i]) is not None]


# -- processors that have a setting ----------------------------------------------------------------

# in the order of `processing.PENALTIES` and `processing.WARPERS`
PENALTY_NAMES = (
    "SequenceBiasLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
)
WARPER_NAMES = (
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "MinPLogitsWarper",
)


def _as_setting(processor: Any, context: Context) -> Known | None:
    """The processor's class name and the options that do the same, None where none do."""
    name = type(processor).__name__
    reader = READERS.get(name)
    options = None if reader is None else reader(processor, context)
    return None if options is None else (name, options)


def _read_bias(processor: Any, context: Context) -> Options:
    return {"sequence_bias": dict(processor.sequence_bias)}


def _read_repetition(processor: Any, context: Context) -> Options | None:
    ignored = getattr(processor, "prompt_ignore_length", None)
    if isinstance(ignored, Tensor):  # what `generate` passes to leave the padding out
        ignored = 0 if ignored.tolist() == list(context.padding) else 1
    return None if ignored else {"repetition_penalty": processor.penalty}


def _read_ngram(processor: Any, context: Context) -> Options:
    return {"no_repeat_ngram_size": processor.ngram_size}


def _read_bad_words(processor: Any, context: Context) -> Options:
    return {"bad_words_ids": [list(word) for word in processor.sequence_bias]}


def _read_min_length(processor: Any, context: Context) -> Options | None:
    least = max(0, processor.min_length - context.width)
    return {"min_new_tokens": least} if _same_eos(processor, context) else None


def _read_min_new_tokens(processor: Any, context: Context) -> Options | None:
    if not _same_eos(processor, context) or processor.prompt_length_to_skip != context.width:
        return None
    return {"min_new_tokens": processor.min_new_tokens}


def _same_eos(processor: Any, context: Context) -> bool:
    return set(processor.eos_token_id.tolist()) == set(context.eos)


def _warper(field_name: str) -> Callable[[Any, Context], Options | None]:
    def read_warper(processor: Any, context: Context) -> Options | None:
        usual = (
            getattr(processor, "min_tokens_to_keep", 1) == 1
            and getattr(processor, "filter_value", -torch.inf) == -torch.inf
        )
        return {field_name: getattr(processor, field_name)} if usual and context.sampled else None

    return read_warper


READERS: dict[str, Callable[[Any, Context], Options | None]] = {
    "SequenceBiasLogitsProcessor": _read_bias,
    "RepetitionPenaltyLogitsProcessor": _read_repetition,
    "NoRepeatNGramLogitsProcessor": _read_ngram,
    "NoBadWordsLogitsProcessor": _read_bad_words,
    "MinLengthLogitsProcessor": _read_min_length,
    "MinNewTokensLengthLogitsProcessor": _read_min_new_tokens,
    "TemperatureLogitsWarper": _warper("temperature"),
    "TopKLogitsWarper": _warper("top_k"),
    "TopPLogitsWarper": _warper("top_p"),
    "MinPLogitsWarper": _warper("min_p"),
}

# -- processors and criteria that are called -------------------------------------------------------


@dataclass(slots=True)
class Padded:
    """Gives a processor or criterion a row as `generate` has it, with its padding in front."""

    inner: Callable[..., Any]
    padding: int
    pad: int

    @property
    def name(self) -> str:
        """For messages."""
        return type(self.inner).__name__

    def __call__(self, input_ids: Tensor, scores: Any) -> Any:
        """input_ids [1, length] without padding."""
        front = input_ids.new_full((1, self.padding), self.pad)
        return self.inner(torch.cat([front, input_ids], dim=1), scores)


def for_rows(items: Sequence[Any], context: Context) -> list[list[Any]]:
    """The same processors or criteria for every prompt, told of its padding.

    Raises UnsupportedArgumentError, naming the one that holds values of a whole batch.
    """
    if len(context.padding) > 1:
        for item in items:
            _refuse_batch_bound(item)
    bound_items = [[bound(item, row) for item in items] for row in range(len(context.padding))]
    return [
        [Padded(item, padding, context.pad) if padding else item for item in row]
        for row, padding in zip(bound_items, context.padding, strict=True)
    ]


def _refuse_batch_bound(item: Any) -> None:
    name = type(item).__name__
    lengths = getattr(item, "prompt_ignore_length", None)
    if name.startswith("Encoder") or isinstance(lengths, Tensor):
        raise UnsupportedArgumentError(
            f"{name} cannot be evaluated per position: it holds values of a whole batch; "
            "call generate with one prompt at a time"
        )
