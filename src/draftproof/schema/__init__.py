"""Requests as OpenAI and vLLM write them, and what the engine makes of them.

One door for files and HTTP, in three steps:

    request = parse_chat(body)                 names and types; a RequestError names the field
    work = translate(request, pair)            prompt ids and the options of `Pair.generate`
    body = response(work, results, head)       OpenAI's answer

Names are imported on first use: pydantic, and torch behind `translate`, take a moment to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.schema.chat import ChatRequest
    from draftproof.schema.completion import CompletionRequest
    from draftproof.schema.constraints import Constrain, Constraint
    from draftproof.schema.defaults import OPENAI, Defaults
    from draftproof.schema.faults import RequestError
    from draftproof.schema.parse import Request, parse_chat, parse_completion, parse_json
    from draftproof.schema.responses import Head, response, usage
    from draftproof.schema.texts import TextRules
    from draftproof.schema.translation import Model, Work, together, translate

_HOMES = {
    "ChatRequest": "chat",
    "CompletionRequest": "completion",
    "Constrain": "constraints",
    "Constraint": "constraints",
    "Defaults": "defaults",
    "Head": "responses",
    "Model": "translation",
    "OPENAI": "defaults",
    "Request": "parse",
    "RequestError": "faults",
    "TextRules": "texts",
    "Work": "translation",
    "parse_chat": "parse",
    "parse_completion": "parse",
    "parse_json": "parse",
    "response": "responses",
    "together": "translation",
    "translate": "translation",
    "usage": "responses",
}

__all__ = [
    "OPENAI",
    "ChatRequest",
    "CompletionRequest",
    "Constrain",
    "Constraint",
    "Defaults",
    "Head",
    "Model",
    "Request",
    "RequestError",
    "TextRules",
    "Work",
    "parse_chat",
    "parse_completion",
    "parse_json",
    "response",
    "together",
    "translate",
    "usage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'draftproof.schema' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.schema.{_HOMES[name]}"), name)
