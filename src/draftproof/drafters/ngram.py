"""Prompt lookup: propose what followed the last occurrence of the row's final n-gram.

Source: prompt lookup decoding (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding);
names as in vLLM's `prompt_lookup_max` / `prompt_lookup_min`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof.batch import Row
from draftproof.errors import InputError
from draftproof.types import Drafts

Gram = tuple[int, ...]


@dataclass(slots=True)
class _Index:
    """Where each n-gram of one row last ended, kept up to date token by token."""

    seen: int = 0
    ends: dict[Gram, int] = field(default_factory=dict)

    def extend(self, tokens: Sequence[int], shortest: int, longest: int) -> None:
        """Index every n-gram that ends before the last token: the final one has no successor."""
        for end in range(self.seen + 1, len(tokens)):
            for size in range(shortest, min(longest, end) + 1):
                self.ends[tuple(tokens[end - size : end])] = end
        self.seen = max(self.seen, len(tokens) - 1)

    def find(self, tokens: Sequence[int], shortest: int, longest: int) -> int | None:
        """Position after the latest earlier occurrence of the longest matching final n-gram."""
        for size in range(min(longest, len(tokens)), shortest - 1, -1):
            end = self.ends.get(tuple(tokens[len(tokens) - size :]))
            if end is not None:
                return end
        return None


@dataclass(kw_only=True)
class NgramDrafter:
    """Drafts from the row's own text; longest match first, the latest occurrence of it.

    Raises InputError unless 1 <= prompt_lookup_min <= prompt_lookup_max.
    """

    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    name: str = "ngram"
    _indexes: dict[int, _Index] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise InputError(
                "prompt lookup needs 1 <= prompt_lookup_min <= prompt_lookup_max, got "
                f"{self.prompt_lookup_min} and {self.prompt_lookup_max}"
            )

    def limit(self, row: Row) -> int | None:
        return None

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        found = [self._lookup(row, count) for row, count in zip(rows, wanted, strict=True)]
        width = max(map(len, found), default=0)
        padded = [ids + [-1] * (width - len(ids)) for ids in found]
        ids = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)
        return Drafts(ids=ids.to(self.device), counts=[len(ids) for ids in found])

    def _lookup(self, row: Row, count: int) -> list[int]:
        if count == 0:
            return []
        index = self._indexes.setdefault(row.slot, _Index())
        index.extend(row.tokens, self.prompt_lookup_min, self.prompt_lookup_max)
        start = index.find(row.tokens, self.prompt_lookup_min, self.prompt_lookup_max)
        return [] if start is None else row.tokens[start : start + count]

    def commit(self, row: Row) -> None:
        return

    def release(self, row: Row) -> None:
        self._indexes.pop(row.slot, None)
