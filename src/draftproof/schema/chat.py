"""The request of /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from draftproof.schema.fields import INT64, MOST_LOGPROBS, Common, Strict, wrong


def _joined(value: Any) -> Any:
    """The text of a message's content; parts of text are joined by line breaks, as in vLLM."""
    if not isinstance(value, list):
        return value
    return "\n".join(_text_of(index, part) for index, part in enumerate(value))


def _text_of(index: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise wrong("part {index} must be an object with a type", index=index)
    if kind != "text":
        raise wrong(
            "part {index} is of type {kind}, which cannot be served; only text can",
            index=index,
            kind=repr(kind),
        )
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise wrong("part {index} must hold type and text, and nothing else", index=index)
    return str(part["text"])


Content = Annotated[
    str,
    BeforeValidator(_joined),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "additionalProperties": False,
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        }
    ),
]


class CalledFunction(Strict):
    """A function as the model called it."""

    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments themselves and want them as an object."""
        return {"name": self.name, "arguments": json.loads(self.arguments or "{}")}

    @model_validator(mode="after")
    def _parses(self) -> CalledFunction:
        try:
            parsed = json.loads(self.arguments or "{}")
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise wrong("arguments must be a JSON object as text")
        return self


class ToolCall(Strict):
    """One call of a tool in an assistant's message."""

    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # of a message put together from a stream


class Message(Strict):
    """One message; which fields it may have depends on the role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # what clients send back of an answer
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(None, max_length=0)

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise wrong("content is missing")
        owners = {"tool_calls": "assistant", "reasoning": "assistant", "tool_call_id": "tool"}
        owners["reasoning_content"] = "assistant"
        for name, role in owners.items():
            if getattr(self, name) is not None and self.role != role:
                raise wrong("{name} belongs to the role {role}", name=name, role=role)
        return self

    def for_template(self) -> dict[str, Any]:
        """What a chat template is given; an absent content is empty."""
        names = ("name", "tool_call_id", "reasoning", "reasoning_content")
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.tool_calls:
            said["tool_calls"] = [
                {"id": call.id, "type": call.type, "function": call.function.for_template()}
                for call in self.tool_calls
            ]
        return {"role": self.role, "content": self.content or "", **said}


class Function(Strict):
    """A function that the model may call."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """What a chat template is given."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True)}


class NamedFunction(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class Prediction(Strict):
    """Text that the answer is expected to resemble: a draft given by the user."""

    type: Literal["content"]
    content: Content


class ChatRequest(Common):
    """A conversation to be continued."""

    messages: list[Message] = Field(min_length=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    max_completion_tokens: int | None = Field(None, ge=0, le=INT64)
    prediction: Prediction | None = None
    # tools
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    # the template
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: str | None = None

    @property
    def limit(self) -> int | None:
        """The most new tokens, under its new or its old name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def generation_prompt(self) -> bool:
        """Whether the template opens a new message; by default, unless the last one goes on."""
        given = self.add_generation_prompt
        return not self.continue_final_message if given is None else given

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise wrong("max_tokens: differs from max_completion_tokens, its newer name")
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs: needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options: needs stream: true")
        if self.stream and self.prompt_logprobs is not None:
            raise wrong("prompt_logprobs: cannot be streamed")
        self._check_end()
        self._check_tools()
        return self

    def _check_end(self) -> None:
        """An answer to the assistant's own message is more often a mistake than a wish."""
        if self.continue_final_message and self.add_generation_prompt:
            raise wrong("continue_final_message: excludes add_generation_prompt: true")
        last = self.messages[-1]
        if self.continue_final_message and (last.role != "assistant" or last.tool_calls):
            raise wrong("continue_final_message: the last message must be the assistant's text")
        undecided = not self.continue_final_message and self.add_generation_prompt is None
        if last.role == "assistant" and undecided:
            raise wrong(
                "messages: the last one is the assistant's; continue_final_message: true continues "
                "it, add_generation_prompt: true starts another"
            )

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise wrong("tools: two functions have one name")
        if self.tool_choice in (None, "none"):
            return
        if not names:
            raise wrong("tool_choice: needs tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise wrong(
                "tool_choice: there is no function {name}", name=self.tool_choice.function.name
            )
