"""What a request demands of the form of its text: a JSON schema, an expression, a grammar.

The schema only says what is demanded. Whoever can enforce it hands `translate` a `Constrain`, which
makes a logits processor; without one such a request is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from draftproof.sampling import Processor
from draftproof.schema.chat import ChatRequest, NamedTool, Tool
from draftproof.schema.faults import RequestError
from draftproof.schema.fields import Common

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that the generated text must have.

    value: of json_schema a schema, of choice a list of texts, of regex and grammar text, of
           json_object None
    """

    kind: Kind
    value: Any = None


Constrain = Callable[[Constraint], Processor]


def constraint_of(request: Common) -> Constraint | None:
    """The one constraint of a request. Raises RequestError when there are several."""
    found = {name: c for name, c in _all(request).items() if c is not None}
    if len(found) > 1:
        names = " and ".join(found)
        raise RequestError(f"{names}: only one can hold", param=next(iter(found)))
    return next(iter(found.values()), None)


def _all(request: Common) -> dict[str, Constraint | None]:
    return {
        "response_format": _of_format(request),
        **_of_structured(request),
        "guided_json": _schema("guided_json", request.guided_json),
        "guided_regex": _text("regex", request.guided_regex),
        "guided_choice": _choice("guided_choice", request.guided_choice),
        "guided_grammar": _text("grammar", request.guided_grammar),
        "tool_choice": _of_tools(request) if isinstance(request, ChatRequest) else None,
    }


def _of_format(request: Common) -> Constraint | None:
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("json_object")
    if form.json_schema is None:
        raise RequestError(
            "response_format.json_schema: missing", param="response_format.json_schema"
        )
    return Constraint("json_schema", form.json_schema.schema_)


def _of_structured(request: Common) -> dict[str, Constraint | None]:
    outputs = request.structured_outputs
    if outputs is None:
        return {}
    name = "structured_outputs"
    return {
        f"{name}.json": _schema(f"{name}.json", outputs.json_),
        f"{name}.regex": _text("regex", outputs.regex),
        f"{name}.choice": _choice(f"{name}.choice", outputs.choice),
        f"{name}.grammar": _text("grammar", outputs.grammar),
        f"{name}.json_object": Constraint("json_object") if outputs.json_object else None,
    }


def _schema(name: str, value: dict[str, Any] | str | None) -> Constraint | None:
    if value is None:
        return None
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RequestError(f"{name}: bad JSON: {error}", param=name) from error
    if not isinstance(schema, dict):
        raise RequestError(f"{name}: must be a JSON schema", param=name)
    return Constraint("json_schema", schema)


def _text(kind: Kind, value: str | None) -> Constraint | None:
    return None if value is None else Constraint(kind, value)


def _choice(name: str, value: list[str] | None) -> Constraint | None:
    if value is None:
        return None
    if not value or not all(value):
        raise RequestError(f"{name}: must hold texts that are not empty", param=name)
    return Constraint("choice", value)


def _of_tools(request: ChatRequest) -> Constraint | None:
    """A named tool's arguments, or a list of calls of any of the tools; as in vLLM."""
    if isinstance(request.tool_choice, NamedTool):
        wanted = request.tool_choice.function.name
        named = [tool for tool in request.tools or () if tool.function.name == wanted]
        return Constraint("json_schema", _parameters(named[0]))
    if request.tool_choice != "required":
        return None
    most = {"maxItems": 1} if request.parallel_tool_calls is False else {}
    calls = [_call(tool) for tool in request.tools or ()]
    return Constraint(
        "json_schema", {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
    )


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool.function.parameters or {"type": "object", "properties": {}}


def _call(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": [tool.function.name]},
            "parameters": _parameters(tool),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
