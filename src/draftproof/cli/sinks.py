"""Where finished lines go: a journal on disk, or stdout in the order of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from draftproof.cli.console import put
from draftproof.cli.inputs import Item
from draftproof.cli.journal import encode_line
from draftproof.types import Result


class Sink(Protocol):
    """Takes each finished line once; `done` and `failed` are indices it had from an earlier run."""

    done: set[int]
    failed: set[int]

    def open(self) -> None:
        """The models are there: lines may come."""

    def write(self, record: dict[str, Any]) -> None:
        """Take one line."""

    def close(self) -> None:
        """Nothing more comes."""


class OrderedPrinter:
    """Prints each line as soon as all lines before it are printed."""

    def __init__(self, items: Sequence[Item], *, as_json: bool) -> None:
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self._items = items
        self._as_json = as_json
        self._held: dict[int, dict[str, Any]] = {}
        self._next = 0

    def open(self) -> None:
        """stdout is open already."""

    def write(self, record: dict[str, Any]) -> None:
        """Print this line and those that waited for it, or hold it back."""
        self._held[record["index"]] = record
        while self._next in self._held:
            self._print(self._held.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """After an interruption, print what is finished although a line before it is not."""
        for index in sorted(self._held):
            self._print(self._held.pop(index))

    def _print(self, record: dict[str, Any]) -> None:
        if self._as_json:
            put(encode_line(record).decode().rstrip("\n"))
        elif "error" not in record:  # errors are on stderr already
            if len(self._items) > 1:
                put(f"==> {_name(self._items[record['index']])} <==")
            put(record["text"])


def done_record(item: Item, result: Result) -> dict[str, Any]:
    """The output line of a finished request."""
    return {
        "index": item.index,
        **item.labels,
        "prompt": item.prompt,
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "prompt_len": result.prompt_len,
        "stats": result.stats.as_dict(),
        "mode": result.mode,
        "numerics": result.numerics,
        "executor": result.executor,
    }


def failed_record(item: Item) -> dict[str, Any]:
    """The output line of a request that could not be used."""
    return {"index": item.index, **item.labels, "error": item.error}


def _name(item: Item) -> str:
    label = item.labels.get("id", item.labels.get("custom_id", item.labels.get("question_id")))
    return item.source if label is None else str(label)
