"""Fields that every kind of request shares: sampling, ends, what is reported.

Every field may be left out or null, which means the same: the door's default (`defaults`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

INT64 = 2**63 - 1
# As vLLM's default --max-logprobs and OpenAI's bound of top_logprobs.
MOST_LOGPROBS = 20


class Strict(BaseModel):
    """Types are meant literally ("1" is no number); a field that is not declared is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


def wrong(message: str, **context: Any) -> PydanticCustomError:
    """An error of a validator; the message may hold {placeholders} of the context."""
    return PydanticCustomError("draftproof", message, context)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _biases(value: Any) -> Any:
    """JSON has text for keys; token ids are numbers."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if (
            not (isinstance(key, str) and key.isascii() and key.isdecimal())
            and type(key) is not int
        ):
            raise wrong("keys must be token ids, got {key}", key=repr(key))
    return {int(key): bias for key, bias in value.items()}


Strings = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list)]
Biases = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_biases),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]
TokenId = Annotated[int, Field(ge=0, le=INT64)]


class StreamOptions(Strict):
    """What a stream reports besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Strict):
    """vLLM's constraints on the text; exactly one."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class JsonSchema(Strict):
    """A named JSON schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's constraint on the text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Common(Strict):
    """Sampling, ends and reports, in OpenAI's and vLLM's names."""

    model: str | None = None
    # sampling
    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64, description="0 and -1: off")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-INT64 - 1, le=INT64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    logit_bias: Biases | None = None
    bad_words: Strings | None = None
    # ends
    max_tokens: int | None = Field(None, ge=0, le=INT64)
    min_tokens: int | None = Field(None, ge=0, le=INT64)
    stop: Strings | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    # constraints
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # the prompt
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=INT64)
    truncation_side: Literal["left", "right"] | None = None
    # what is reported
    echo: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # labels: they change nothing, and are meant to change nothing
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    request_id: str | None = None
    session_id: str | None = None


# Accepted and without effect; docs/requests.md lists them.
LABELS = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "request_id",
    "session_id",
)
