"""Lines of input files, in every documented shape, as requests (docs/requests.md).

"text"                                                   a line of a .txt file
{"prompt": "..."} or "text", or "turns", or "messages"   simple, with any field of a request
{"prompt": "...", "sampling_params": {...}}              vLLM
{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}    OpenAI
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.schema.faults import RequestError
from draftproof.schema.parse import Request, parse_chat, parse_completion

# Keys of a simple line that come back on its output line.
LABELS = ("id", "custom_id", "question_id", "category", "reference")
# Keys that may hold the prompt of a simple line.
SHAPES = ("prompt", "messages", "turns", "text")
# Keys of an OpenAI batch line.
BATCH = ("custom_id", "method", "url", "body")
# Fields that a simple line may also call as transformers does.
TRANSFORMERS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "num_return_sequences": "n",
}
PARSERS: dict[str, Callable[[Any], Request]] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One request of a file.

    prompt: as the line holds it: text, token ids, messages
    """

    request: Request
    prompt: Any


def is_batch(row: Any) -> bool:
    """Whether a line is one of OpenAI's batch files."""
    return isinstance(row, Mapping) and ("body" in row or "url" in row)


def labels_of(row: Any, more: Collection[str] = ()) -> dict[str, Any]:
    """What of a line comes back in the output.

    more: further keys of a simple line
    """
    if not isinstance(row, Mapping):
        return {}
    names = ("custom_id",) if is_batch(row) else (*LABELS, *more)
    return {name: row[name] for name in names if row.get(name) is not None}


def parse_line(
    row: Any, *, chat: bool = False, labels: Collection[str] = (), batch: bool = False
) -> Line:
    """The request of a line. Raises RequestError, naming the field.

    chat:  texts are what a user says, for the model's chat template
    batch: only lines of OpenAI's batch files are taken
    """
    if batch and not is_batch(row):
        raise RequestError("no line of a batch file, which has custom_id, method, url and body")
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise RequestError("expected a JSON object")
    line = _batch(row) if is_batch(row) else _simple(row, chat, labels)
    if line.request.stream:
        raise RequestError("stream: answers to a file are not streamed", param="stream")
    return line


# -- OpenAI ----------------------------------------------------------------------------------------


def _batch(row: Mapping[str, Any]) -> Line:
    for name in row:
        if name not in BATCH:
            raise RequestError(f"{name}: unknown field of a batch line", param=name)
    if row.get("method") != "POST":
        raise RequestError(f"method: must be POST, got {row.get('method')!r}", param="method")
    if not isinstance(row.get("custom_id"), str):
        raise RequestError("custom_id: must be text", param="custom_id")
    url = row.get("url")
    parse = PARSERS.get(url) if isinstance(url, str) else None
    if parse is None:
        known = " and ".join(PARSERS)
        raise RequestError(f"url: {url!r} cannot be served, only {known}", param="url")
    request = parse(row.get("body"))
    body = row["body"]
    return Line(request=request, prompt=body.get("messages", body.get("prompt")))


# -- simple lines, vLLM ----------------------------------------------------------------------------


def _simple(row: Mapping[str, Any], chat: bool, labels: Collection[str]) -> Line:
    shape, prompt = _prompt_of(row)
    kept = (*LABELS, *labels, "sampling_params", *SHAPES)
    body = {name: value for name, value in row.items() if name not in kept}
    body = _renamed(_merged(body, row.get("sampling_params")))
    if chat and isinstance(prompt, str) and prompt:
        shape, prompt = "messages", [{"role": "user", "content": prompt}]
    is_chat = shape == "messages"
    body["messages" if is_chat else "prompt"] = prompt
    try:
        request: Request = parse_chat(_counted(body)) if is_chat else parse_completion(body)
    except RequestError as error:
        if error.param in row and "unknown field" in str(error):
            hint = f"{error}; --label {error.param} would copy it to the output"
            raise RequestError(hint, param=error.param) from error
        raise
    return Line(request=request, prompt=prompt)


def _prompt_of(row: Mapping[str, Any]) -> tuple[str, Any]:
    shapes = [key for key in SHAPES if row.get(key) is not None]
    if not shapes:
        raise RequestError(f"none of {', '.join(SHAPES)} in the line")
    if len(shapes) > 1:
        raise RequestError(f"ambiguous: the line holds {' and '.join(shapes)}", param=shapes[1])
    shape, prompt = shapes[0], row[shapes[0]]
    if shape == "turns":  # Spec-Bench: later turns follow up on an answer; the first stands alone
        if not (isinstance(prompt, list) and prompt and isinstance(prompt[0], str)):
            raise RequestError("turns: must be a list of texts", param="turns")
        return shape, prompt[0]
    return shape, prompt


def _merged(body: dict[str, Any], params: Any) -> dict[str, Any]:
    if params is None:
        return body
    if not isinstance(params, Mapping):
        raise RequestError("sampling_params: must be an object", param="sampling_params")
    for name in params:
        if name in body:
            raise RequestError(f"{name}: given twice, also in sampling_params", param=name)
    return {**body, **params}


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    for theirs, ours in TRANSFORMERS.items():
        if theirs in body and ours in body:
            raise RequestError(f"{theirs}: given twice, also as {ours}", param=theirs)
    return {TRANSFORMERS.get(name, name): value for name, value in body.items()}


def _counted(body: dict[str, Any]) -> dict[str, Any]:
    """`logprobs` as vLLM's sampling_params count them, in a chat's two fields."""
    count = body.get("logprobs")
    if type(count) is not int or "top_logprobs" in body:
        return body
    return {**body, "logprobs": True, "top_logprobs": count}
