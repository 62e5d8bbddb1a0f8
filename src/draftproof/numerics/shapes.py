"""The shapes an executor gives its kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER = 1 << 40  # longer than any view
# Row counts that a matrix product may be restricted to; between two of them little is filled in.
SIZES = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 33, 40, 48, 56, 64),
    *(80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
)


def round_up(count: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Rows:
    """With how many rows a matrix product is called, whatever the number there is.

    sizes:  the row counts allowed, ascending; none: any

    A call with another count is filled up to the next size by repeating the last row, and what is
    filled in is dropped from the result. More rows than the largest size are cut into pieces.
    """

    sizes: tuple[int, ...] = ()

    def filled(self, count: int) -> int:
        """Rows of the call that computes `count`, at most `most`, of them."""
        return self.sizes[bisect_left(self.sizes, count)] if self.sizes and count else count

    @property
    def most(self) -> int:
        """Rows of the largest call."""
        return self.sizes[-1] if self.sizes else NEVER

    def piece(self, count: int) -> int:
        """Size of the pieces that `count` rows are cut into: as few and as equal as they can be."""
        pieces = -(-count // self.most)
        return -(-count // pieces)


ANY = Rows()
# oneDNN compiles a packed product anew for every row count and keeps the code, about 0.6 MiB each:
# a bulk run meets hundreds of counts, so no more than these are ever asked for.
COARSE = Rows(SIZES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Rounding rules under which kernels are called.

    tokens:     the flat token count N and the number of logits are rounded up to a multiple of
                this with filler rows that are dropped afterwards (functions of single elements)
    products:   for the kinds of matrix products that need it, with how many rows they are called
    view:       the key view of attention is a multiple of this
    long_view:  a view longer than this is a multiple of this (the kernel's own key block)
    barred:     multiples of `view` below `long_view` that may not be used: the next one is
    queries:    attention gets a multiple of this many (folded) queries per key head
    width:      tokens of one row that attend in one call, at most
    lone_row:   whether a linear called with a single row may take a kernel of its own
    least:      tokens that a row feeds at least, its last cached ones again where it lacks them
                (paged attention has another kernel for a single one)
    """

    tokens: int = 1
    products: Mapping[str, Rows] = field(default_factory=dict, hash=False)
    view: int = 16
    long_view: int = NEVER
    barred: tuple[int, ...] = ()
    queries: int = 1
    width: int = NEVER
    lone_row: bool = True
    least: int = 1

    def rows_of(self, kind: str) -> Rows:
        """The rule for one kind of matrix product."""
        return self.products.get(kind, ANY)

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
