"""From the options of a call to one `Settings` per row: what is given, for which row, and defaults.

The only place that knows how a user may write an option down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch

from draftproof.batch import Request
from draftproof.callables import bound, own_callables
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.processing import stream_key
from draftproof.sampling import Coupling, Ids, Settings, as_ids, as_strings, whole_number


class RequestOptions(TypedDict, total=False):
    """Settings of a request: one value for all prompts, or a list with one per prompt.

    Where a value is itself a list (eos ids, stop strings, bad words, biases, processors), a list of
    such values is one per prompt. What they mean: `Settings`.
    """

    max_new_tokens: int | Sequence[int]  # default 128
    min_new_tokens: int | Sequence[int]  # default 0
    eos_token_id: int | Sequence[Any] | None  # default: the model's own
    ignore_eos: bool | Sequence[bool]  # default False: go on to max_new_tokens
    stop_strings: str | Sequence[Any] | None  # default: none
    stopping_criteria: Sequence[Any] | None  # default: none
    # default: sampled where temperature (not 0), top_k, top_p or min_p is given
    do_sample: bool | Sequence[bool | None] | None
    temperature: float | Sequence[float | None] | None  # default 1
    top_k: int | Sequence[int | None] | None  # default: off
    top_p: float | Sequence[float | None] | None  # default: off
    min_p: float | Sequence[float | None] | None  # default: off
    seed: int | Sequence[int | None] | None  # default: drawn from torch's global generator
    coupling: str | Sequence[str | None] | None  # default: "seeded" with a seed, else "rejection"
    num_return_sequences: int | Sequence[int]  # default 1
    repetition_penalty: float | Sequence[float | None] | None
    presence_penalty: float | Sequence[float | None] | None
    frequency_penalty: float | Sequence[float | None] | None
    logit_bias: Any  # {token id: bias}
    sequence_bias: Any  # {(id, id, ...): bias} or [[[id, id, ...], bias], ...]
    bad_words_ids: Any  # [[id, id, ...], ...]
    no_repeat_ngram_size: int | Sequence[int | None] | None
    logits_processor: Any  # processors as in transformers, see docs/sampling.md
    logprobs: int | Sequence[int | None] | None  # how many of the best besides the chosen token
    prompt_logprobs: int | Sequence[int | None] | None
    output_scores: bool | Sequence[bool]
    output_logits: bool | Sequence[bool]


def make_requests(
    prompts: Sequence[Sequence[int]], options: Mapping[str, Any], eos: Ids, vocab_size: int
) -> list[Request]:
    """Requests of all sequences of all prompts, in order; prompts are token ids.

    eos: what `eos_token_id` is when it is not given
    Raises InputError or UnsupportedArgumentError, naming the option.
    """
    settings = settings_per_row(options, len(prompts), eos)
    counts = per_row("num_return_sequences", options.get("num_return_sequences", 1), len(prompts))
    requests = [
        _request(origin, list(prompts[origin]), settings[origin], sequence)
        for origin, count in enumerate(_checked_counts(counts, settings))
        for sequence in range(count)
    ]
    for request in requests:
        _refuse_strange_ids(request.settings, vocab_size)
    owned = own_callables([request.settings for request in requests])
    return [
        replace(request, index=index, settings=setting)
        for index, (request, setting) in enumerate(zip(requests, owned, strict=True))
    ]


def _request(origin: int, prompt: list[int], settings: Settings, sequence: int) -> Request:
    stream = stream_key(settings.seed, prompt, sequence) if settings.sampled else 0
    own = tuple(bound(processor, origin) for processor in settings.logits_processor)
    return Request(
        index=0,
        prompt=prompt,
        settings=replace(settings, logits_processor=own) if own else settings,
        stream=stream,
        origin=origin,
        sequence=sequence,
    )


def _checked_counts(counts: Sequence[int], settings: Sequence[Settings]) -> Sequence[int]:
    for origin, (count, setting) in enumerate(zip(counts, settings, strict=True)):
        whole_number("num_return_sequences", count, 1)
        if count > 1 and not setting.sampled:
            raise InputError(
                f"num_return_sequences={count} for prompt {origin}, which is decoded greedily: all "
                "would be the same; use do_sample=True"
            )
    return counts


# -- settings --------------------------------------------------------------------------------------


def settings_per_row(options: Mapping[str, Any], count: int, eos: Ids) -> list[Settings]:
    """One `Settings` for each of `count` prompts."""
    given = {"eos_token_id": eos, **options}
    known = RequestOptions.__annotations__.keys() - {"num_return_sequences"}
    columns = {name: per_row(name, given[name], count) for name in known & given.keys()}
    return [
        _settings({name: values[row] for name, values in columns.items()}) for row in range(count)
    ]


def per_row(name: str, value: Any, count: int) -> list[Any]:
    """One value per prompt from a value for all, or from a list with one for each."""
    if SINGLE.get(name, _is_scalar)(value):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} has {len(value)} values for {count} prompts")
    return list(value)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (list, tuple))


def _is_flat(kind: type) -> Callable[[Any], bool]:
    """Whether a value is none, one item, or a list of items."""
    return lambda value: _is_scalar(value) or all(isinstance(item, kind) for item in value)


def _is_words(value: Any) -> bool:
    """[[1, 2], [3]] is one list of words; [[[1, 2]], None] is one such list per prompt."""
    return value is None or all(
        isinstance(word, (list, tuple)) and all(isinstance(item, int) for item in word)
        for word in value
    )


def _is_biases(value: Any) -> bool:
    """A dictionary, or [[[1, 2], 0.5], ...]."""
    return _is_scalar(value) or all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[1], (int, float))
        for pair in value
    )


def _is_callables(value: Any) -> bool:
    """One callable or a list of them (transformers' lists are callable lists)."""
    return _is_scalar(value) or all(callable(item) and _is_scalar(item) for item in value)


SINGLE: dict[str, Callable[[Any], bool]] = {
    "eos_token_id": _is_flat(int),
    "stop_strings": _is_flat(str),
    "bad_words_ids": _is_words,
    "sequence_bias": _is_biases,
    "logits_processor": _is_callables,
    "stopping_criteria": _is_callables,
}
# a given None means the default, except where None is a value
NONE_IS_A_VALUE = {"eos_token_id", "stop_strings"}


def _settings(given: dict[str, Any]) -> Settings:
    given = {k: v for k, v in given.items() if v is not None or k in NONE_IS_A_VALUE}
    ignored = given.pop("ignore_eos", False)
    given["eos_token_id"] = () if ignored else as_ids(given["eos_token_id"])
    given["stop_strings"] = as_strings(given.get("stop_strings"))
    biases = (*_biases(given.pop("logit_bias", ())), *_biases(given.get("sequence_bias", ())))
    given["sequence_bias"] = biases
    given["bad_words_ids"] = tuple(tuple(word) for word in given.get("bad_words_ids", ()))
    for name in ("logits_processor", "stopping_criteria"):
        given[name] = _flat(given.get(name, ()))
    filters = any(given.get(n) is not None for n in ("temperature", "top_k", "top_p", "min_p"))
    given.setdefault("do_sample", filters)
    if "seed" in given:
        given["seed"] = whole_number("seed", given["seed"])
    default = Coupling.SEEDED if "seed" in given else Coupling.REJECTION
    settings = Settings(**given | {"coupling": _coupling(given.get("coupling", default))})
    if settings.sampled and "seed" not in given:
        return replace(settings, seed=int(torch.randint(1 << 62, (1,))))
    return settings


def _coupling(name: str) -> Coupling:
    if name not in list(Coupling):
        raise UnsupportedArgumentError(
            f"coupling={name!r}; choose one of {', '.join(list(Coupling))}"
        )
    return Coupling(name)


def _biases(value: Any) -> tuple[tuple[Ids, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(
        (as_ids(ids if isinstance(ids, (tuple, list)) else int(ids)), float(bias))
        for ids, bias in pairs
    )


def _flat(value: Any) -> tuple[Callable[..., Any], ...]:
    """The callables of a list, of a list in a list, or the one given."""
    if _is_scalar(value):
        return (value,)
    return tuple(item for part in value for item in _flat(part))


def _refuse_strange_ids(settings: Settings, vocab_size: int) -> None:
    named = {
        "logit_bias or sequence_bias": [ids for ids, _ in settings.sequence_bias],
        "bad_words_ids": settings.bad_words_ids,
    }
    for name, words in named.items():
        for word in words:
            if not all(0 <= token < vocab_size for token in word):
                raise InputError(
                    f"{name}: {list(word)} holds an id outside the vocabulary of {vocab_size}"
                )
