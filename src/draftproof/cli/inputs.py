"""Prompts from the command line, a file, a folder or stdin, as items with a stable index.

A line that cannot be used becomes an item with an `error`; it never stops the others. Only the
shape is judged here. Whether a prompt fits the model is judged in encoding.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from draftproof.errors import InputError

Prompt: TypeAlias = "str | list[int] | list[dict[str, Any]]"

# Keys of an input line that come back on its output line.
LABELS = ("id", "custom_id", "question_id", "category")
# Keys that may hold the prompt of a JSON line.
SHAPES = ("prompt", "messages", "turns", "text")
BLANK = b" \t\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One prompt asked for.

    index:   position among all prompts of the input, failed ones included
    source:  where it came from, for messages: "line 3", "prompt 1", a file name
    ids:     token ids, once encoded
    """

    index: int
    source: str
    prompt: Prompt | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    ids: list[int] | None = None
    error: str | None = None


def read_items(
    prompts: Sequence[str] | None, source: str | None, *, chat: bool = False
) -> list[Item]:
    """All prompts, from `--prompt`, `--input` (a file, a folder, `-`) or stdin.

    Raises InputError when the source is missing, or holds no prompt at all.
    """
    if prompts and source is not None:
        raise InputError("give either --prompt or --input, not both")
    items = _from_words(prompts) if prompts else _from_source(source)
    if not items:
        raise InputError(f"no prompts in {source or 'stdin'}")
    return [_as_chat(item) for item in items] if chat else items


def _from_words(prompts: Sequence[str]) -> list[Item]:
    return [_plain(index, f"prompt {index + 1}", text) for index, text in enumerate(prompts)]


def _from_source(source: str | None) -> list[Item]:
    if source is None and sys.stdin.isatty():
        raise InputError("no prompts: give --prompt TEXT, --input FILE, or pipe them to stdin")
    if source is None or source == "-":
        return parse_lines(sys.stdin.buffer.read())
    path = Path(source)
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise InputError(f"--input {source}: no such file or folder")
    return parse_lines(path.read_bytes(), suffix=path.suffix.lower())


def _from_folder(folder: Path) -> list[Item]:
    """Every .txt file is one prompt and its name the id."""
    files = sorted(folder.glob("*.txt"))
    return [_from_file(index, file) for index, file in enumerate(files)]


def _from_file(index: int, file: Path) -> Item:
    labels = {"id": file.name}
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        return Item(index=index, source=file.name, labels=labels, error=_not_utf8(error))
    return replace(_plain(index, file.name, text), labels=labels)


def parse_lines(data: bytes, suffix: str = "") -> list[Item]:
    """One item per line that is not blank: JSON objects, or plain text.

    `.txt` is text and `.jsonl` or `.ndjson` is JSON; anything else, as stdin, is JSON when its
    first line starts with a brace.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError("the input is UTF-16; save it as UTF-8")
    lines = list(_numbered(data.removeprefix(b"\xef\xbb\xbf")))
    is_json = suffix in (".jsonl", ".ndjson") or (
        suffix != ".txt" and bool(lines) and lines[0][1].lstrip(BLANK).startswith(b"{")
    )
    parse = _json_item if is_json else _plain
    return [_line_item(i, number, line, parse) for i, (number, line) in enumerate(lines)]


def _numbered(data: bytes) -> Iterator[tuple[int, bytes]]:
    # On bytes: str.splitlines would also cut at U+2028, which JSON strings may hold.
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip(BLANK):
            yield number, line


def _line_item(
    index: int, number: int, line: bytes, parse: Callable[[int, str, str], Item]
) -> Item:
    source = f"line {number}"
    try:
        return parse(index, source, line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Item(index=index, source=source, error=_not_utf8(error))


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte {error.start + 1})"


def _plain(index: int, source: str, text: str) -> Item:
    return Item(index=index, source=source, prompt=text, error=_prompt_error(text))


def _json_item(index: int, source: str, line: str) -> Item:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Item(index=index, source=source, error=f"bad JSON: {error}")
    if not isinstance(row, dict):
        return Item(index=index, source=source, error="expected a JSON object")
    labels = {key: row[key] for key in LABELS if key in row}
    try:
        prompt, limit = _prompt_of(row), _limit_of(row)
    except InputError as error:
        return Item(index=index, source=source, labels=labels, error=str(error))
    return Item(index=index, source=source, prompt=prompt, labels=labels, max_new_tokens=limit)


def _prompt_of(row: dict[str, Any]) -> Prompt:
    shapes = [key for key in SHAPES if key in row]
    if not shapes:
        raise InputError(f"none of {', '.join(SHAPES)} in the line")
    if len(shapes) > 1:
        raise InputError(f"ambiguous: the line holds {' and '.join(shapes)}")
    prompt = row[shapes[0]]
    if shapes == [
        "turns"
    ]:  # Spec-Bench: later turns follow up on an answer; the first stands alone
        prompt = prompt[0] if isinstance(prompt, list) and prompt else None
    if error := _prompt_error(prompt, messages=shapes == ["messages"]):
        raise InputError(error)
    result: Prompt = prompt
    return result


def _prompt_error(prompt: Any, *, messages: bool = False) -> str | None:
    if not isinstance(prompt, str | list):
        return "the prompt must be text, token ids or messages"
    if not prompt:
        return "the prompt is empty"
    if messages:
        good = isinstance(prompt, list) and all(map(_is_message, prompt))
        return None if good else "messages must be objects with a role and content"
    if isinstance(prompt, list) and not all(type(i) is int for i in prompt):
        return "a prompt that is a list must hold token ids only"
    return None


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and "role" in message and "content" in message


def _limit_of(row: dict[str, Any]) -> int | None:
    limit = row.get("max_new_tokens")
    if limit is None or (type(limit) is int and limit >= 0):
        return limit
    raise InputError(f"max_new_tokens must be a whole number, 0 or more, got {limit!r}")


def _as_chat(item: Item) -> Item:
    if not isinstance(item.prompt, str) or item.error:
        return item
    return replace(item, prompt=[{"role": "user", "content": item.prompt}])
