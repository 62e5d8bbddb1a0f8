"""From a request to what `Pair.generate` takes: prompts as token ids, and options.

The only place where a field of OpenAI's or vLLM's gets its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from draftproof.errors import InputError
from draftproof.requests import RequestOptions, make_requests
from draftproof.schema.chat import ChatRequest
from draftproof.schema.constraints import Constrain, constraint_of
from draftproof.schema.defaults import COMPLETION_TOKENS, OPENAI, Defaults
from draftproof.schema.faults import RequestError
from draftproof.schema.parse import Request
from draftproof.schema.prompts import Prompt, encode_prediction, encode_prompts
from draftproof.schema.texts import TextRules
from draftproof.schema.words import bad_word_ids


class Model(Protocol):
    """What must be known of a model; a `Pair` is one."""

    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Size of the target's embedding."""

    @property
    def max_model_len(self) -> int | None:
        """Longest row, None when nobody says."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A request as the engine takes it.

    prompts:     each is decoded `n` times
    options:     of `Pair.generate`, one value for all prompts; `together` joins several requests
    prediction:  token ids that the answer may resemble, a draft given by the user
    """

    request: Request
    prompts: list[Prompt]
    options: RequestOptions
    rules: TextRules
    prediction: list[int] | None = None

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of the prompts."""
        return [prompt.ids for prompt in self.prompts]

    @property
    def n(self) -> int:
        """Answers per prompt."""
        return cast(int, self.options["num_return_sequences"])

    def sampling(self) -> dict[str, Any]:
        """How tokens were chosen, defaults included: for the answer."""
        names = ("temperature", "top_p", "top_k", "min_p")
        chosen = {"do_sample": self.options["do_sample"]}
        if chosen["do_sample"]:
            given = cast("dict[str, Any]", self.options)
            chosen |= {"temperature": 1.0} | {k: given[k] for k in names if k in given}
        return chosen


def translate(
    request: Request,
    model: Model,
    *,
    defaults: Defaults = OPENAI,
    names: Collection[str] | None = None,
    constrain: Constrain | None = None,
    trust_templates: bool = False,
) -> Work:
    """What a request asks of the engine, checked to the last number.

    defaults:         what fields mean that are left out
    names:            of the model, as requests may call it; None: any
    constrain:        enforces `response_format` and its like; None refuses them
    trust_templates:  whether a request may bring its own chat template, which is a program
    Raises RequestError, naming the field.
    """
    _require_model(request, names)
    limit = _limit(request, defaults)
    prompts = encode_prompts(request, model, limit, trust_templates=trust_templates)
    options = _options(request, model, defaults)
    options["max_new_tokens"] = _room(request, model, prompts, limit)
    if (processor := _processor(request, constrain)) is not None:
        options["logits_processor"] = [processor]
    work = Work(
        request=request,
        prompts=prompts,
        options=cast(RequestOptions, options),
        rules=_rules(request, model, options),
        prediction=encode_prediction(request, model),
    )
    _check(work, model)
    return work


def together(works: Sequence[Work]) -> tuple[list[list[int]], RequestOptions]:
    """Prompts and options of several requests as one call of `Pair.generate` takes them.

    Prompts are in the order of the requests; each option has one value per prompt.
    """
    rows = [(prompt, work.options) for work in works for prompt in work.ids]
    given = {name for _, options in rows for name in options}
    columns = {name: [options.get(name) for _, options in rows] for name in sorted(given)}
    return [prompt for prompt, _ in rows], cast(RequestOptions, columns)


def _require_model(request: Request, names: Collection[str] | None) -> None:
    if request.model is None or names is None or request.model in names:
        return
    known = ", ".join(sorted(names))
    raise RequestError(
        f"model: {request.model!r} is not served here, but {known} (--served-model-name)",
        param="model",
        status=404,
    )


# -- lengths ---------------------------------------------------------------------------------------


def _limit(request: Request, defaults: Defaults) -> int | None:
    """The most new tokens; None for what the context still holds."""
    if isinstance(request, ChatRequest):
        given = request.limit
        return defaults.max_new_tokens if given is None else given
    usual = COMPLETION_TOKENS if defaults.max_new_tokens is None else defaults.max_new_tokens
    return usual if request.max_tokens is None else request.max_tokens


def _room(request: Request, model: Model, prompts: Sequence[Prompt], limit: int | None) -> int:
    """The most new tokens, which must fit if the request itself asks for them."""
    longest, context = max(len(prompt.ids) for prompt in prompts), model.max_model_len
    if limit is None:
        if context is None:
            raise RequestError(
                "max_tokens: missing; the model does not say how long its context is",
                param="max_tokens",
            )
        return max(0, context - longest)
    asked = request.limit if isinstance(request, ChatRequest) else request.max_tokens
    if asked is not None and context is not None and longest + asked > context:
        raise RequestError(
            f"max_tokens: {asked} and a prompt of {longest} tokens are more than the context of "
            f"{context}",
            param="max_tokens",
        )
    return limit


# -- options ---------------------------------------------------------------------------------------

# fields that the engine has under the same name
SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "prompt_logprobs",
)
OFF = {"top_p": 1, "top_k": 0, "min_p": 0}  # filters that filter nothing


def _options(request: Request, model: Model, defaults: Defaults) -> dict[str, Any]:
    given = {name: getattr(request, name) for name in SAME}
    given["top_k"] = 0 if request.top_k == -1 else request.top_k
    given["min_new_tokens"] = request.min_tokens
    given["stop_strings"] = request.stop
    given["logprobs"] = _logprobs(request)
    if request.echo and not isinstance(request, ChatRequest) and request.prompt_logprobs is None:
        given["prompt_logprobs"] = request.logprobs
    if request.bad_words:
        given["bad_words_ids"] = bad_word_ids(request.bad_words, model.tokenizer)
    options = {**defaults.options, **{k: v for k, v in given.items() if v is not None}}
    own = () if request.ignore_eos else model.eos_token_ids
    options["eos_token_id"] = [*own, *_stop_ids(request, model)]
    options["do_sample"] = _sampled(options)
    options["num_return_sequences"] = request.n or options.get("num_return_sequences") or 1
    return options


def _sampled(options: dict[str, Any]) -> bool:
    """By the temperature; without one, whether anything is filtered."""
    temperature = options.get("temperature")
    if temperature is not None:
        return bool(temperature > 0)
    return any(options.get(name, off) != off for name, off in OFF.items())


def _logprobs(request: Request) -> int | None:
    if isinstance(request, ChatRequest):
        return (request.top_logprobs or 0) if request.logprobs else None
    return request.logprobs


def _stop_ids(request: Request, model: Model) -> list[int]:
    stops = request.stop_token_ids or []
    for token in stops:
        if token >= model.vocab_size:
            raise RequestError(
                f"stop_token_ids: {token} is outside the vocabulary of {model.vocab_size}",
                param="stop_token_ids",
            )
    return stops


def _processor(request: Request, constrain: Constrain | None) -> Any:
    constraint = constraint_of(request)
    if constraint is None:
        return None
    if constrain is None:
        raise RequestError(
            f"text constrained by {constraint.kind} cannot be served here", param="response_format"
        )
    try:
        return constrain(constraint)
    except InputError as error:
        raise RequestError(f"{constraint.kind}: {error}", param="response_format") from error


def _rules(request: Request, model: Model, options: dict[str, Any]) -> TextRules:
    stops = options.get("stop_strings") or ()
    return TextRules(
        tokenizer=model.tokenizer,
        skip_special_tokens=request.skip_special_tokens is not False,
        include_stop=bool(request.include_stop_str_in_output),
        stop_strings=(stops,) if isinstance(stops, str) else tuple(stops),
        stop_token_ids=tuple(request.stop_token_ids or ()),
    )


def _check(work: Work, model: Model) -> None:
    """What only the engine's own settings know: ranges, and ids within the vocabulary."""
    options, request = work.options, work.request
    if work.n > 1 and not options["do_sample"]:
        raise RequestError(
            f"n: {work.n} answers decoded greedily would all be the same; give a temperature",
            param="n",
        )
    fewest, most = request.min_tokens or 0, options["max_new_tokens"]
    if isinstance(most, int) and fewest > most:
        raise RequestError(
            f"min_tokens: {fewest} is more than max_tokens, {most}", param="min_tokens"
        )
    if model.tokenizer is None and work.rules.stop_strings:
        raise RequestError("stop: needs a tokenizer", param="stop")
    try:
        make_requests(work.ids, options, model.eos_token_ids, model.vocab_size)
    except RequestError:
        raise
    except InputError as error:
        raise RequestError(str(error)) from error
