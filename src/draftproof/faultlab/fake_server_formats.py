"""The formats of servers, from the server's side: vLLM, SGLang, llama.cpp, plain OpenAI.

Well enough for `HttpSubject`: what the dialects ask for and read, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.forensics.subjects.base import TOP, Answer, Inquiry

VLLM = {"max": "max_tokens", "min": "min_tokens", "eos": "stop_token_ids"}
SGLANG = {"max": "max_new_tokens", "min": "min_new_tokens", "eos": "stop_token_ids"}
LLAMA = {"max": "n_predict", "min": "min_tokens", "eos": "eos"}


def read(path: str, body: dict[str, Any]) -> tuple[list[int], int | None, Inquiry]:
    """Prompt, seed (None: greedy) and rules of a request."""
    if path == "/v1/completions":
        prompt, options, names = body["prompt"], body, VLLM
    elif path == "/generate":
        prompt, options, names = body["input_ids"], body["sampling_params"], SGLANG
    else:
        prompt, options, names = body["prompt"], body, LLAMA
    rules = _rules(options, names)
    if rules.temperature is None:
        return prompt, None, rules
    return prompt, int(options.get("seed", options.get("sampling_seed", 0))), rules


def _rules(body: dict[str, Any], names: dict[str, str]) -> Inquiry:
    ends = body.get(names["eos"]) or ()
    return Inquiry(
        tasks=(),
        max_new_tokens=int(body.get(names["max"], 16)),
        min_new_tokens=int(body.get(names["min"], 0)),
        eos_token_id=() if body.get("ignore_eos") else tuple(ends) if ends else None,
        stop_strings=tuple(body.get("stop") or ()),
        temperature=float(body["temperature"]) if body.get("temperature") else None,
    )


def write(path: str, answer: Answer, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """The response, as `/v1/completions`, `/generate` or `/completion` gives it."""
    ids = list(answer.ids)
    listed = [list(zip(top.ids, top.values, strict=True))[:TOP] for top in answer.tops]
    if path == "/v1/completions":
        named = [{f"token_id:{i}": value for i, value in pairs} for pairs in listed]
        choice = {
            "index": 0,
            "text": decode(ids),
            "token_ids": ids,
            "logprobs": {"top_logprobs": named},
            "finish_reason": answer.finish_reason,
        }
        return {"object": "text_completion", "choices": [choice]}
    drafted = sum(len(one.drafts) for one in answer.rounds)
    if path == "/generate":
        raw = [[[value, i, None] for i, value in pairs] for pairs in listed]
        meta = {
            "output_top_logprobs": raw,
            "finish_reason": {"type": answer.finish_reason},
            "spec_verify_ct": len(answer.rounds) - 1 if drafted else 0,
            "spec_draft_token_num": drafted,
        }
        return {"output_ids": ids, "meta_info": meta}
    drafts = _accepted_drafts(answer)
    probabilities = [
        {"top_logprobs": [{"id": i, "logprob": value} for i, value in pairs if not accepted]}
        for pairs, accepted in zip(listed, drafts, strict=True)
    ]
    accepted = sum(one.accepted for one in answer.rounds)
    timings = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {"predicted_n": 1}
    return {
        "tokens": ids,
        "stop_type": answer.finish_reason,
        "completion_probabilities": probabilities,
        "timings": timings,
    }


def _accepted_drafts(answer: Answer) -> list[bool]:
    """Per scored token: whether it came from a draft. llama.cpp shows no scores for those."""
    found = [place < one.accepted for one in answer.rounds for place, _ in enumerate(one.emitted)]
    return found if len(found) == len(answer.tops) else [False] * len(answer.tops)
