"""Prompts of a request as token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from draftproof.errors import InputError
from draftproof.schema.chat import ChatRequest
from draftproof.schema.faults import RequestError
from draftproof.schema.parse import Request
from draftproof.text import checked_ids, decode, encode_text, render_chat


class Vocabulary(Protocol):
    """What encoding needs to know of a model."""

    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Size of the target's embedding."""

    @property
    def max_model_len(self) -> int | None:
        """Longest row, None when nobody says."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    text: as `echo` repeats it; None without a tokenizer
    """

    ids: list[int]
    text: str | None = None


def encode_prompts(
    request: Request, model: Vocabulary, limit: int | None, *, trust_templates: bool
) -> list[Prompt]:
    """Token ids of every prompt, cut where the request asks for it, checked against the model.

    limit: the most new tokens, None for what the context still holds
    Raises RequestError, naming the field.
    """
    field = "messages" if isinstance(request, ChatRequest) else "prompt"
    encoded = (
        _chat(request, model, trust_templates)
        if isinstance(request, ChatRequest)
        else _completions(request, model)
    )
    try:
        return [_fitted(prompt, request, model, limit) for prompt in encoded]
    except RequestError:
        raise
    except InputError as error:
        raise RequestError(f"{field}: {error}", param=field) from error


def encode_prediction(request: Request, model: Vocabulary) -> list[int] | None:
    """Token ids of the text that the user expects."""
    if not isinstance(request, ChatRequest) or request.prediction is None:
        return None
    return encode_text(_tokenizer(model), request.prediction.content, add_special_tokens=False)


def _tokenizer(model: Vocabulary) -> Any:
    if model.tokenizer is None:
        raise RequestError("text needs a tokenizer; give token ids", param="prompt")
    return model.tokenizer


# -- completions -----------------------------------------------------------------------------------


def _completions(request: Any, model: Vocabulary) -> Iterator[Prompt]:
    special = request.add_special_tokens is not False
    for prompt in request.prompt:
        if isinstance(prompt, str):
            ids = encode_text(_tokenizer(model), prompt, add_special_tokens=special)
            yield Prompt(ids, prompt)
        else:
            yield Prompt(prompt, None)


# -- chats -----------------------------------------------------------------------------------------


def _chat(request: ChatRequest, model: Vocabulary, trusted: bool) -> Iterator[Prompt]:
    tokenizer = _tokenizer(model)
    if request.chat_template is not None and not trusted:
        raise RequestError(
            "chat_template: a request may not bring its own template here", param="chat_template"
        )
    text = render_chat(
        tokenizer,
        [message.for_template() for message in request.messages],
        chat_template=request.chat_template,
        add_generation_prompt=request.generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        **_variables(request, tokenizer),
    )
    special = bool(request.add_special_tokens)
    yield Prompt(encode_text(tokenizer, text, add_special_tokens=special), text)


# what `apply_chat_template` takes itself
RESERVED = {
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}


def _variables(request: ChatRequest, tokenizer: Any) -> dict[str, Any]:
    """Variables of the template besides the messages; one that it does not read is refused."""
    own = request.chat_template_kwargs or {}
    for name in own:
        if name in RESERVED:
            raise RequestError(
                f"chat_template_kwargs.{name}: is not the template's to take",
                param=f"chat_template_kwargs.{name}",
            )
    wanted = {f"chat_template_kwargs.{name}": (name, value) for name, value in own.items()}
    if request.tools and request.tool_choice != "none":
        wanted["tools"] = ("tools", [tool.for_template() for tool in request.tools])
    if request.documents:
        wanted["documents"] = ("documents", request.documents)
    if request.reasoning_effort is not None:
        wanted["reasoning_effort"] = ("reasoning_effort", request.reasoning_effort)
    template = _template(request, tokenizer, "tools" in wanted)
    for field, (name, _) in wanted.items():
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise RequestError(f"{field}: the chat template does not read it", param=field)
    return dict(wanted.values())


def _template(request: ChatRequest, tokenizer: Any, tools: bool) -> str:
    """Source of the template that will be used; a tokenizer may have one for tools alone."""
    template = request.chat_template or getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, dict):
        name = "tool_use" if tools and "tool_use" in template else "default"
        template = template.get(name, "")
    return str(template)


# -- lengths ---------------------------------------------------------------------------------------


def _fitted(prompt: Prompt, request: Request, model: Vocabulary, limit: int | None) -> Prompt:
    ids = _truncated(prompt.ids, request, model, limit)
    checked_ids(ids, model.vocab_size)
    if model.max_model_len is not None and len(ids) > model.max_model_len:
        raise InputError(f"{len(ids)} tokens are more than the context of {model.max_model_len}")
    if request.echo and (prompt.text is None or len(ids) < len(prompt.ids)):
        text = (
            None
            if model.tokenizer is None
            else decode(model.tokenizer, ids, skip_special_tokens=False)
        )
        return Prompt(ids, text)
    return Prompt(ids, prompt.text)


def _truncated(ids: list[int], request: Request, model: Vocabulary, limit: int | None) -> list[int]:
    """The last (or, if asked, first) tokens; -1 is as many as the context has room for."""
    most = request.truncate_prompt_tokens
    if most == -1:
        if model.max_model_len is None:
            return ids
        most = max(1, model.max_model_len - (limit or 1))
    if most is None or len(ids) <= most:
        return ids
    if most == 0:
        raise RequestError(
            "truncate_prompt_tokens: 0 would leave nothing", param="truncate_prompt_tokens"
        )
    return ids[:most] if request.truncation_side == "right" else ids[-most:]
