"""Prompts to token ids; what does not fit the model becomes an item's error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from draftproof.cli.prompts import PromptItem
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.api import Pair


def encode_items(pair: Pair, items: Iterable[PromptItem]) -> list[PromptItem]:
    """Every item with token ids or with an error."""
    return [item if item.error else _encode(pair, item) for item in items]


def _encode(pair: Pair, item: PromptItem) -> PromptItem:
    assert item.prompt is not None, "an item has a prompt or an error"
    try:
        return replace(item, ids=pair.encode(item.prompt))
    except InputError as error:
        return replace(item, error=str(error))
