"""The shapes an executor gives its kernels."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = 1 << 40  # longer than any view


def round_up(count: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Rounding rules under which kernels are called.

    tokens:     every linear gets a multiple of this many rows; the flat token count N and the
                number of logits are rounded up with filler rows that are dropped afterwards
    view:       the key view of attention is a multiple of this
    long_view:  a view longer than this is a multiple of this (the kernel's own key block)
    barred:     multiples of `view` below `long_view` that may not be used: the next one is
    queries:    attention gets a multiple of this many (folded) queries per key head
    lone_row:   whether a linear called with a single row may take a kernel of its own
    """

    tokens: int = 1
    view: int = 16
    long_view: int = NEVER
    barred: tuple[int, ...] = ()
    queries: int = 1
    lone_row: bool = True

    def view_of(self, length: int) -> int:
        """Length of the key view that covers `length` cached tokens."""
        short = round_up(length, self.view)
        while short in self.barred:
            short += self.view
        return short if short <= self.long_view else round_up(length, self.long_view)

    def fill(self, indices: list[int]) -> list[int]:
        """Repeat the last index until the count is a multiple of `tokens`."""
        extra = round_up(len(indices), self.tokens) - len(indices)
        return indices + indices[-1:] * extra


FAST = Shapes()
