"""How servers are asked, and what their answers mean: vLLM, SGLang, llama.cpp, plain OpenAI."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftproof.forensics.subjects.base import NOT_SHOWN, TOP, Answer, Counters, Inquiry, Task, Top

Body = dict[str, Any]


class BadAnswerError(ValueError):
    """A response that is not what the server's format says; the row gets it as its error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer, and what this one response says about speculation (None: nothing)."""

    answer: Answer
    drafted: int | None = None
    accepted: int | None = None


class Dialect(Protocol):
    """One kind of server."""

    name: str
    path: str
    metrics: bool  # whether counters are read from /metrics

    def request(self, task: Task, inquiry: Inquiry, model: str | None) -> Body:
        """The JSON to post."""

    def reply(self, body: Any) -> Reply:
        """Raises BadAnswerError when something is missing."""


def need(body: Any, *keys: str | int) -> Any:
    """body[k0][k1]..., or BadAnswerError naming what is missing."""
    for depth, key in enumerate(keys):
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            path = ".".join(map(str, keys[: depth + 1]))
            raise BadAnswerError(f"the response has no {path}") from None
    return body


def token_ids(values: Any) -> tuple[int, ...]:
    """A list of integers, or BadAnswerError."""
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise BadAnswerError(f"expected a list of token ids, got {str(values)[:60]}")
    return tuple(values)


def _stops(inquiry: Inquiry, strings: str, ids: str, ignore: str | None = None) -> Body:
    body: Body = {}
    if inquiry.stop_strings:
        body[strings] = list(inquiry.stop_strings)
    if inquiry.eos_token_id:
        body[ids] = list(inquiry.eos_token_id)
    if inquiry.eos_token_id == () and ignore:
        body[ignore] = True
    return body


def _drawn(task: Task, inquiry: Inquiry, *, seed: str, top_k: int | None = None) -> Body:
    """Greedy, or a draw from the whole distribution: servers cut it by defaults of their own."""
    if inquiry.temperature is None:
        return {"temperature": 0}
    whole: Body = {"top_p": 1.0} if top_k is None else {"top_p": 1.0, "min_p": 0.0, "top_k": top_k}
    return {"temperature": inquiry.temperature, seed: task.index, **whole}


@dataclass(frozen=True, kw_only=True)
class Vllm:
    """`/v1/completions` with `return_token_ids`; counters from `/metrics`."""

    name: str = "vllm"
    path: str = "/v1/completions"
    metrics: bool = True

    def request(self, task: Task, inquiry: Inquiry, model: str | None) -> Body:
        """Prompt as ids, greedy, with the likeliest alternatives per token."""
        return {
            "model": model,
            "prompt": list(task.prompt) if task.prompt else task.text,
            "max_tokens": inquiry.max_new_tokens,
            "min_tokens": inquiry.min_new_tokens,
            **_drawn(task, inquiry, seed="seed", top_k=-1),
            "logprobs": TOP,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "include_stop_str_in_output": True,
            **_stops(inquiry, "stop", "stop_token_ids", "ignore_eos"),
        }

    def reply(self, body: Any) -> Reply:
        """Ids and logprobs of the first choice."""
        choice = need(body, "choices", 0)
        ids = token_ids(need(choice, "token_ids"))
        logprobs = choice.get("logprobs") or {}
        tops = [_named_top(entry) for entry in logprobs.get("top_logprobs") or []]
        return Reply(
            answer=Answer(
                ids=ids,
                tops=_aligned(tops, ids),
                finish_reason=choice.get("finish_reason"),
            )
        )

    def scoring(self, task: Task, ids: Sequence[int], model: str | None) -> Body:
        """The prompt and an answer, to be scored and not continued (one token is the least)."""
        return {
            "model": model,
            "prompt": [*task.prompt, *ids],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": TOP,
        }

    def scored(self, body: Any, first: int) -> tuple[Top, ...]:
        """The likeliest tokens in front of each prompt token from `first` on."""
        lines = need(body, "choices", 0, "prompt_logprobs")
        if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines[first:]):
            raise BadAnswerError("expected prompt_logprobs for every token")
        tops = tuple(
            top_of([(i, need(one, "logprob")) for i, one in line.items()]) for line in lines[first:]
        )
        if not all(top.ids for top in tops):
            raise BadAnswerError("prompt_logprobs without a score for some token")
        return tops


def _named_top(entry: Any) -> Top:
    """{"token_id:5": -0.1, "token_id:7": -2.5}; NOT_SHOWN where names are texts."""
    if entry is not None and not isinstance(entry, Mapping):
        raise BadAnswerError(f"expected scores by token, got {str(entry)[:60]}")
    pairs = [(name.removeprefix("token_id:"), value) for name, value in (entry or {}).items()]
    return top_of(pairs) if all(name.isdigit() for name, _ in pairs) else NOT_SHOWN


def top_of(pairs: Sequence[tuple[Any, Any]]) -> Top:
    """Best first; equal ones by id. Values are logarithms of probabilities.

    A token of probability 0 (minus infinity, which JSON writes as null) is no alternative: it is
    left out like all tokens that the server does not list.
    """
    known = [(whole(i), score(value)) for i, value in pairs]
    best = sorted(
        (pair for pair in known if pair[1] != -math.inf), key=lambda pair: (-pair[1], pair[0])
    )
    return Top(ids=tuple(i for i, _ in best), values=tuple(v for _, v in best), logits=False)


def whole(value: Any) -> int:
    """A token id, also as the name of a field, or BadAnswerError."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise BadAnswerError(f"expected a token id, got {str(value)[:60]}") from None


def score(value: Any) -> float:
    """A logarithm of a probability, or BadAnswerError; null is minus infinity."""
    if value is None:
        return -math.inf
    number = math.nan if isinstance(value, bool) else _number(value)
    if math.isnan(number):
        raise BadAnswerError(f"expected a score, got {str(value)[:60]}")
    return number


def _number(value: Any) -> float:
    """NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _aligned(tops: Sequence[Top], ids: Sequence[int]) -> tuple[Top, ...]:
    """One per token; none at all where their number is another one or no place shows scores."""
    told = len(tops) == len(ids) and any(top.ids for top in tops)
    return tuple(tops) if told else ()


@dataclass(frozen=True, kw_only=True)
class Sglang:
    """`/generate`; counters in `meta_info`."""

    name: str = "sglang"
    path: str = "/generate"
    metrics: bool = False

    def request(self, task: Task, inquiry: Inquiry, model: str | None) -> Body:
        """Prompt as ids, greedy."""
        prompt = {"input_ids": list(task.prompt)} if task.prompt else {"text": task.text}
        return {
            **prompt,
            "sampling_params": {
                "max_new_tokens": inquiry.max_new_tokens,
                "min_new_tokens": inquiry.min_new_tokens,
                **_drawn(task, inquiry, seed="sampling_seed", top_k=-1),
                "no_stop_trim": True,
                **_stops(inquiry, "stop", "stop_token_ids", "ignore_eos"),
            },
            "return_logprob": True,
            "top_logprobs_num": TOP,
        }

    def reply(self, body: Any) -> Reply:
        """`spec_verify_ct` counts verifying forwards: each emits its accepted drafts and one token
        more; the very first token is the prefill's."""
        ids, meta = token_ids(need(body, "output_ids")), body.get("meta_info") or {}
        tops = [_paired_top(entry) for entry in meta.get("output_top_logprobs") or []]
        finish = meta.get("finish_reason")
        rounds = meta.get("spec_verify_ct")
        emitted = None if rounds is None else max(0, len(ids) - 1 - int(rounds)) if rounds else 0
        return Reply(
            answer=Answer(
                ids=ids,
                tops=_aligned(tops, ids),
                finish_reason=finish.get("type") if isinstance(finish, dict) else finish,
            ),
            drafted=meta.get("spec_draft_token_num", rounds),
            accepted=meta.get("spec_accept_token_num", emitted),
        )


def _paired_top(entry: Any) -> Top:
    """[[-0.1, 5, "text"], [-2.5, 7, "text"]]; null: not shown."""
    return top_of([(need(pair, 1), need(pair, 0)) for pair in entry or []])


@dataclass(frozen=True, kw_only=True)
class LlamaCpp:
    """`/completion` with `return_tokens`; counters in `timings`.

    A token that was accepted from a draft comes without scores: its log-probability is written as
    0.0 and its list of alternatives is empty.
    """

    name: str = "llama.cpp"
    path: str = "/completion"
    metrics: bool = False

    def request(self, task: Task, inquiry: Inquiry, model: str | None) -> Body:
        """Prompt as ids, greedy, without the prompt cache: it changes the shapes."""
        body: Body = {
            "prompt": list(task.prompt) if task.prompt else task.text,
            "n_predict": inquiry.max_new_tokens,
            **_drawn(task, inquiry, seed="seed", top_k=0),
            "n_probs": TOP,
            "return_tokens": True,
            "cache_prompt": False,
        }
        if inquiry.stop_strings:
            body["stop"] = list(inquiry.stop_strings)
        if inquiry.eos_token_id == ():
            body["ignore_eos"] = True
        return body

    def reply(self, body: Any) -> Reply:
        """`timings.draft_n` is there only while speculation runs."""
        ids, timings = token_ids(need(body, "tokens")), body.get("timings") or {}
        tops = [_listed_top(entry) for entry in body.get("completion_probabilities") or []]
        return Reply(
            answer=Answer(
                ids=ids,
                tops=_aligned(tops, ids),
                finish_reason=body.get("stop_type"),
            ),
            drafted=int(timings.get("draft_n", 0)) if timings else None,
            accepted=int(timings.get("draft_n_accepted", 0)) if timings else None,
        )


def _listed_top(entry: Any) -> Top:
    listed = need(entry, "top_logprobs") or []
    return top_of([(need(one, "id"), need(one, "logprob")) for one in listed])


@dataclass(frozen=True, kw_only=True)
class OpenAI:
    """`/v1/completions` without ids: text only, made into tokens again on this side."""

    retokenise: Callable[[str], Sequence[int]]
    name: str = "openai"
    path: str = "/v1/completions"
    metrics: bool = False

    def request(self, task: Task, inquiry: Inquiry, model: str | None) -> Body:
        """Prompt as text."""
        body: Body = {
            "model": model,
            "prompt": task.text if task.text is not None else list(task.prompt),
            "max_tokens": inquiry.max_new_tokens,
            **_drawn(task, inquiry, seed="seed"),
        }
        return body | ({"stop": list(inquiry.stop_strings)} if inquiry.stop_strings else {})

    def reply(self, body: Any) -> Reply:
        """Predicted-token counts where `usage` has them."""
        choice = need(body, "choices", 0)
        text = need(choice, "text")
        if not isinstance(text, str):
            raise BadAnswerError(f"expected a text, got {str(text)[:60]}")
        usage = body.get("usage") or {}
        details = usage.get("completion_tokens_details") or {}
        accepted = details.get("accepted_prediction_tokens")
        rejected = details.get("rejected_prediction_tokens")
        return Reply(
            answer=Answer(
                ids=tuple(self.retokenise(text)), finish_reason=choice.get("finish_reason")
            ),
            drafted=None if accepted is None or rejected is None else accepted + rejected,
            accepted=accepted,
        )


# -- counters --------------------------------------------------------------------------------------

PREFIXES = ("vllm:", "draftproof:")
DRAFTED, ACCEPTED = "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"
ROUNDS = "spec_decode_num_drafts"


def prometheus(text: str) -> dict[str, float]:
    """Sums of samples by name, without prefix, labels and the suffix `_total`."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name, _, value = line.rpartition(" ")
        name = name.split("{")[0].removesuffix("_total")
        for prefix in PREFIXES:
            if name.startswith(prefix):
                key = name.removeprefix(prefix)
                sums[key] = sums.get(key, 0.0) + float(value)
    return sums


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> Counters:
    """What /metrics says of the time between two looks.

    A server that shows other counters of its own and none of speculation does not speculate.
    """
    if not after:
        return Counters()

    def grown(name: str) -> int:
        return int(after.get(name, 0) - before.get(name, 0))

    return Counters(
        drafted=grown(DRAFTED), accepted=grown(ACCEPTED), rounds=grown(ROUNDS), source="/metrics"
    )
