"""From a body to a request; what is wrong is said by the field's name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from draftproof.schema.chat import ChatRequest
from draftproof.schema.completion import CompletionRequest
from draftproof.schema.faults import RequestError
from draftproof.schema.fields import Strict
from draftproof.schema.unserved import without_unserved

Request: TypeAlias = CompletionRequest | ChatRequest
Kind = TypeVar("Kind", bound=Strict)
MOST_ERRORS = 5  # that one message lists


def parse_completion(body: Any) -> CompletionRequest:
    """The body of /v1/completions. Raises RequestError, naming the field."""
    return parse_model(CompletionRequest, body)


def parse_chat(body: Any) -> ChatRequest:
    """The body of /v1/chat/completions. Raises RequestError, naming the field."""
    return parse_model(ChatRequest, body)


def parse_json(data: str | bytes) -> Any:
    """JSON without the liberties of Python's parser: no NaN, no key twice, UTF-8 only."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"not UTF-8 (byte {error.start + 1})") from error
    except RecursionError as error:
        raise RequestError("bad JSON: nested too deeply") from error
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"bad JSON: {error}") from error


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"{twice}: given twice", param=twice)
    return found


def _constant(name: str) -> Any:
    raise RequestError(f"bad JSON: {name} is no number of JSON")


def parse_model(kind: type[Kind], body: Any) -> Kind:
    """A body as the model of its kind. Raises RequestError, naming the field."""
    if not isinstance(body, Mapping):
        raise RequestError("expected a JSON object")
    _refuse_surrogates(body)
    try:
        return kind.model_validate(without_unserved(body, kind.model_fields))
    except ValidationError as error:
        raise _named(error, kind) from error


def _refuse_surrogates(value: Any, path: str = "") -> None:
    """JSON can escape half a character, which no tokenizer can read."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"{path}: character {error.start + 1} is half of a surrogate pair", param=path
            ) from error
    elif isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_surrogates(name, path or "a name")
            _refuse_surrogates(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and not (value and type(value[0]) is int):
        for index, part in enumerate(value):
            _refuse_surrogates(part, f"{path}[{index}]")


# -- errors ----------------------------------------------------------------------------------------


def _named(error: ValidationError, kind: type[Strict]) -> RequestError:
    found = [_sentence(detail, kind) for detail in error.errors(include_url=False)]
    found = list(dict.fromkeys(found))
    rest = f"; and {len(found) - MOST_ERRORS} more" if len(found) > MOST_ERRORS else ""
    words = "; ".join(f"{name}: {what}" for name, what in found[:MOST_ERRORS])
    return RequestError(words + rest, param=found[0][0])


def _sentence(detail: ErrorDetails, kind: type[Strict]) -> tuple[str, str]:
    """The field and what is wrong with it."""
    place = _path(detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(detail["loc"][-1]), _names(kind), n=1, cutoff=0.75)
        hint = f"; did you mean {near[0]}?" if near and len(detail["loc"]) == 1 else ""
        return place, f"unknown field{hint}"
    if detail["type"] == "missing":
        return place, "missing"
    if detail["type"] == "draftproof":
        name, sign, what = detail["msg"].partition(": ")
        if not detail["loc"] and sign:  # of a whole request: the message names the field
            return name, what
        return place, detail["msg"]
    return place, f"{_lower(detail['msg'])}, got {_short(detail['input'])}"


def _names(kind: type[Strict]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[2].content`; names of branches of a union, which are no fields, are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_branch(part):
            path += f".{part}" if path else part
    return path or "the request"


def _is_branch(part: str) -> bool:
    """Pydantic writes `dict[str,any]`, `str`, `NamedTool`, `literal['none','auto']`."""
    return part in ("str", "list", "dict") or "[" in part or part[:1].isupper()


def _lower(message: str) -> str:
    message = message.removeprefix("Input should be ")
    return f"must be {message}" if message[:1].islower() else message[:1].lower() + message[1:]


def _short(value: Any) -> str:
    words = json.dumps(value, default=str)
    return words if len(words) <= 60 else words[:57] + "..."
