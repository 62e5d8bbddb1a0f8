"""What every executor checks of its rows' lengths."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.errors import InvariantError
from draftproof.types import RaggedTokens


def refuse_misfit(tokens: RaggedTokens, lengths: Sequence[int], capacity: int) -> None:
    """Raise InvariantError when tokens do not continue their rows, or do not fit."""
    for row, start, count in zip(tokens.rows, tokens.starts, tokens.counts, strict=True):
        if start != lengths[row]:
            raise InvariantError(f"row {row}: fed at {start}, cached {lengths[row]}")
        if start + count > capacity:
            raise InvariantError(f"row {row}: {start + count} tokens exceed {capacity}")


def refuse_longer(row: int, length: int, lengths: Sequence[int]) -> None:
    """Raise InvariantError when a truncation would make a row longer."""
    if not 0 <= length <= lengths[row]:
        raise InvariantError(f"row {row}: truncate to {length}, cached {lengths[row]}")


def check_lengths(lengths: Sequence[int], capacity: int) -> None:
    """Raise InvariantError when a length does not fit the allocation."""
    for row, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            raise InvariantError(f"row {row}: length {length} of {capacity} slots")
