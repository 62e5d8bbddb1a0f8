"""The request of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from draftproof.schema.fields import MOST_LOGPROBS, Common, wrong


def _prompts(value: Any) -> Any:
    """The four shapes of OpenAI's `prompt` as a list of texts and lists of ids."""
    single = isinstance(value, str) or (
        isinstance(value, list) and bool(value) and _is_id(value[0])
    )
    prompts = [value] if single else value
    if not isinstance(prompts, list):
        raise wrong("must be text, token ids, or a list of either")
    for index, prompt in enumerate(prompts):
        place = "" if single else f"number {index} "
        if not isinstance(prompt, str | list):
            raise wrong("{place}must be text or token ids", place=place)
        if len(prompt) == 0:
            raise wrong("{place}is empty", place=place)
        if isinstance(prompt, list) and not all(map(_is_id, prompt)):
            raise wrong("{place}must hold token ids only", place=place)
    if not prompts:
        raise wrong("is empty")
    return prompts


def _is_id(value: Any) -> bool:
    return type(value) is int


Prompts = Annotated[
    list[Any],
    BeforeValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "integer", "minimum": 0},
                    },
                },
            ]
        }
    ),
]


class CompletionRequest(Common):
    """Text or token ids to be continued.

    prompt:    as a list, whatever the shape it was written in
    best_of:   the same as n, which older clients send along
    """

    prompt: Prompts
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _agrees(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise wrong("best_of: only the value of n can be served")
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options: needs stream: true")
        if self.stream and self.prompt_logprobs is not None:
            raise wrong("prompt_logprobs: cannot be streamed")
        return self
