"""The shapes an executor gives its kernels."""

from __future__ import annotations

from dataclasses import dataclass


def round_up(count: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Rounding rules for the kernels' shapes.

    tokens:      the flat token count N is a multiple of this (every linear sees N rows)
    view:        the key view of attention is a multiple of this
    large_view:  as `view`, once the view is longer than this number
    queries:     attention gets a multiple of this many queries per key head
    """

    tokens: int = 1
    view: int = 1
    large_view: int = 1
    queries: int = 1

    def fill(self, indices: list[int]) -> list[int]:
        """Repeat the last index until the count is a multiple of `tokens`."""
        extra = round_up(len(indices), self.tokens) - len(indices)
        return indices + indices[-1:] * extra

    def view_of(self, length: int, capacity: int) -> int:
        """Length of the key view for `length` cached tokens, at most `capacity` slots."""
        short = round_up(length, self.view)
        if short > self.large_view:
            short = round_up(length, self.large_view)
        return min(short, capacity)


FAST = Shapes(view=16)
