"""Results as OpenAI's API returns them, with vLLM's extensions where a request asks for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from draftproof.logprobs import chat_logprobs, completion_logprobs
from draftproof.schema.chat import ChatRequest, NamedTool
from draftproof.schema.translation import Work
from draftproof.text import decode
from draftproof.types import FinishReason, Result, TokenLogprob

FINISH = {FinishReason.EOS: "stop", FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What an answer says of itself.

    id:      without the prefix of its kind
    created: seconds since 1970
    model:   as the request named it
    """

    id: str
    created: int
    model: str


def response(work: Work, results: Sequence[Result], head: Head) -> dict[str, Any]:
    """The body of a finished request; results in order, `n` for each prompt.

    Beyond OpenAI's fields: `draftproof` (how it ran), and per choice `seed`, `stats`.
    """
    is_chat = isinstance(work.request, ChatRequest)
    make = _chat_choice if is_chat else _completion_choice
    body: dict[str, Any] = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{head.id}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": [make(work, index, result) for index, result in enumerate(results)],
        "usage": usage(work, results),
        "draftproof": how(work, results),
    }
    if is_chat:
        body |= _of_prompt(work, results[0])
    return body


def how(work: Work, results: Sequence[Result]) -> dict[str, Any]:
    """How an answer came about: sampling with its defaults, and what ran."""
    first = results[0]
    return {
        "sampling": work.sampling(),
        "mode": first.mode,
        "numerics": first.numerics,
        "executor": first.executor,
    }


def usage(work: Work, results: Sequence[Result], *, cached: bool = False) -> dict[str, Any]:
    """Tokens read and written; a prompt counts once, however many answers it has.

    cached: also tell which tokens of prompts were copied, which depends on what else was running
    """
    prompt = sum(map(len, work.ids))
    completion = sum(len(result.token_ids) for result in results)
    drafted = sum(result.stats.num_draft_tokens for result in results)
    accepted = sum(result.stats.num_accepted_draft_tokens for result in results)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
    if cached:
        copied = sum(result.num_cached_tokens for result in results)
        counts["prompt_tokens_details"] = {"cached_tokens": copied}
    return counts


# -- choices ---------------------------------------------------------------------------------------


def _completion_choice(work: Work, index: int, result: Result) -> dict[str, Any]:
    prompt = work.prompts[index // work.n]
    ending = work.rules.ending(result.token_ids, result.finish_reason)
    before = (prompt.text or "") if work.request.echo else ""
    return {
        "index": index,
        "text": before + ending.text,
        "logprobs": _completion_logprobs(work, result, prompt.ids),
        "finish_reason": FINISH[result.finish_reason],
        "stop_reason": ending.stop_reason,
        **_common(work, result),
        **_of_prompt(work, result, prompt.ids),
    }


def _chat_choice(work: Work, index: int, result: Result) -> dict[str, Any]:
    request, entries = work.request, result.logprobs
    assert isinstance(request, ChatRequest)
    ending = work.rules.ending(result.token_ids, result.finish_reason)
    message, finish = chat_message(request, ending.text, FINISH[result.finish_reason])
    return {
        "index": index,
        "message": message,
        "logprobs": None if entries is None else chat_logprobs(renamed(work, entries)),
        "finish_reason": finish,
        "stop_reason": ending.stop_reason,
        **_common(work, result),
    }


def chat_message(request: ChatRequest, text: str, finish: str) -> tuple[dict[str, Any], str]:
    """The assistant's message, and the finish reason that belongs to it.

    A tool that had to be called is called; other text is left as the model wrote it.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if isinstance(request.tool_choice, NamedTool):
        calls = [(request.tool_choice.function.name, text)]
        return message | {"content": None, "tool_calls": _calls(calls)}, finish
    if request.tool_choice == "required" and finish == "stop":
        calls = [(call["name"], json.dumps(call["parameters"])) for call in json.loads(text)]
        return message | {"content": None, "tool_calls": _calls(calls)}, "tool_calls"
    if request.echo and request.continue_final_message:
        message["content"] = (request.messages[-1].content or "") + text
    return message, finish


def _calls(calls: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{blake2b(f'{index}{name}{text}'.encode(), digest_size=12).hexdigest()}",
            "type": "function",
            "function": {"name": name, "arguments": text},
        }
        for index, (name, text) in enumerate(calls)
    ]


def _common(work: Work, result: Result) -> dict[str, Any]:
    """What a choice says beyond OpenAI's fields."""
    more: dict[str, Any] = {"seed": result.seed, "stats": result.stats.as_dict()}
    if result.audited is not None:
        more["audited"] = str(result.audited)
    return more | ({"token_ids": result.token_ids} if work.request.return_token_ids else {})


def _of_prompt(work: Work, result: Result, ids: list[int] | None = None) -> dict[str, Any]:
    """What is reported of the prompt: with a completion's choice, or with a chat as a whole."""
    ids = work.ids[0] if ids is None else ids
    more: dict[str, Any] = {}
    if work.request.return_token_ids:
        more["prompt_token_ids"] = ids
    if work.request.prompt_logprobs is not None and result.prompt_logprobs is not None:
        more["prompt_logprobs"] = prompt_logprobs(result.prompt_logprobs)
    return more


# -- log-probabilities -----------------------------------------------------------------------------


def prompt_logprobs(entries: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """vLLM's shape: per token of the prompt, the token itself and the most probable ones, by id."""
    return [
        None if entry is None else {str(e.token_id): _by_rank(e) for e in (entry, *entry.top)}
        for entry in entries
    ]


def _by_rank(entry: TokenLogprob) -> dict[str, Any]:
    return {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": entry.token}


def logprobs(work: Work, index: int, result: Result) -> dict[str, Any] | None:
    """The `logprobs` object of choice `index`, in the shape of its kind of request."""
    if result.logprobs is None:
        return None
    if isinstance(work.request, ChatRequest):
        return chat_logprobs(renamed(work, result.logprobs))
    return _completion_logprobs(work, result, work.ids[index // work.n])


def _completion_logprobs(work: Work, result: Result, prompt: list[int]) -> dict[str, Any] | None:
    if result.logprobs is None:
        return None
    entries = renamed(work, result.logprobs)
    if not work.request.echo or result.prompt_logprobs is None:
        return completion_logprobs(entries)
    known = [entry for entry in result.prompt_logprobs if entry is not None]
    first = _first_text(work, prompt[0])
    found = completion_logprobs([*renamed(work, known), *entries], start=len(first))
    return {
        "tokens": [first, *found["tokens"]],
        "token_logprobs": [None, *found["token_logprobs"]],
        "top_logprobs": [None, *found["top_logprobs"]],
        "text_offset": [0, *found["text_offset"]],
    }


def _first_text(work: Work, token: int) -> str:
    """Of the prompt's first token, which nothing predicts."""
    if work.request.return_tokens_as_token_ids:
        return f"token_id:{token}"
    return decode(work.rules.tokenizer, [token], skip_special_tokens=False)


def renamed(work: Work, entries: Sequence[TokenLogprob]) -> list[TokenLogprob]:
    """With `token_id:7` for the text of token 7 where the request asks for it."""
    if not work.request.return_tokens_as_token_ids:
        return list(entries)
    return [
        replace(entry, token=f"token_id:{entry.token_id}", top=tuple(renamed(work, entry.top)))
        for entry in entries
    ]
