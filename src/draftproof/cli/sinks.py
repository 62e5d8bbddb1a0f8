"""Where finished lines go: a journal on disk, or stdout in the order of the prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from draftproof.cli.console import put
from draftproof.cli.inputs import Item
from draftproof.cli.journal import encode_line


class Sink(Protocol):
    """Takes each finished line once; `done` are indices it had from an earlier run."""

    @property
    def done(self) -> set[int]:
        """Indices of requests that need nothing more."""

    def open(self) -> None:
        """The models are there: lines may come."""

    def write(self, item: Item, record: Mapping[str, Any]) -> None:
        """Take one line."""

    def close(self) -> None:
        """Nothing more comes."""


class OrderedPrinter:
    """Prints each line as soon as all lines before it are printed.

    total: number of lines; several have a heading each
    """

    def __init__(self, total: int, *, as_json: bool) -> None:
        self.done: set[int] = set()
        self._total = total
        self._as_json = as_json
        self._held: dict[int, tuple[Item, Mapping[str, Any]]] = {}
        self._next = 0

    def open(self) -> None:
        """stdout is open already."""

    def write(self, item: Item, record: Mapping[str, Any]) -> None:
        """Print this line and those that waited for it, or hold it back."""
        self._held[item.index] = item, record
        while self._next in self._held:
            self._print(*self._held.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """After an interruption, print what is finished although a line before it is not."""
        for index in sorted(self._held):
            self._print(*self._held.pop(index))

    def _print(self, item: Item, record: Mapping[str, Any]) -> None:
        if self._as_json:
            put(encode_line(record).decode().rstrip("\n"))
        elif "error" not in record:  # errors are on stderr already
            if self._total > 1:
                put(f"==> {_name(item)} <==")
            for choice in record.get("choices", [record]):
                put(choice["text"])


def _name(item: Item) -> str:
    labels = item.labels
    label = labels.get("id", labels.get("custom_id", labels.get("question_id")))
    return item.source if label is None else str(label)
