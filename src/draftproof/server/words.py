"""/tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from draftproof.schema import RequestError, parse_chat, parse_json
from draftproof.schema.fields import Strict, TokenId
from draftproof.schema.parse import parse_model
from draftproof.schema.prompts import encode_prompts
from draftproof.text import decode, encode_text

if TYPE_CHECKING:
    from draftproof.server.model import ServedModel

FOR_TEXT = {"prompt", "add_special_tokens", "return_token_strs", "model"}


class TokenizeRequest(Strict):
    """A text, or a conversation with what its template takes."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId] = Field()


def tokenize(body: bytes, model: ServedModel) -> dict[str, Any]:
    """Token ids as a completion or a chat would read them. Raises RequestError."""
    request = parse_model(TokenizeRequest, parse_json(body))
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    ids = _of_text(request, model) if request.messages is None else _of_chat(request, model)
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
    }
    if request.return_token_strs:
        answer["token_strs"] = [
            decode(model.tokenizer, [token], skip_special_tokens=False) for token in ids
        ]
    return answer


def _of_text(request: TokenizeRequest, model: ServedModel) -> list[int]:
    if unread := sorted(request.model_fields_set - FOR_TEXT):
        raise RequestError(f"{unread[0]}: belongs to messages", param=unread[0])
    special = request.add_special_tokens is not False
    return encode_text(model.tokenizer, request.prompt or "", add_special_tokens=special)


def _of_chat(request: TokenizeRequest, model: ServedModel) -> list[int]:
    names = request.model_fields_set - {"prompt", "return_token_strs"}
    chat = parse_chat({name: getattr(request, name) for name in names})
    (prompt,) = encode_prompts(chat, model, 0, trust_templates=False)
    return prompt.ids


def detokenize(body: bytes, model: ServedModel) -> dict[str, Any]:
    """The text of token ids, special tokens included. Raises RequestError."""
    request = parse_model(DetokenizeRequest, parse_json(body))
    for token in request.tokens:
        if token >= model.vocab_size:
            raise RequestError(
                f"tokens: {token} is outside the vocabulary of {model.vocab_size}", param="tokens"
            )
    return {"prompt": decode(model.tokenizer, request.tokens, skip_special_tokens=False)}
