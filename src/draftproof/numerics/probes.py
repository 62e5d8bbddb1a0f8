"""Probes: is one row's result the same, bit for bit, whatever else is in the call?

Each probe tries shapes from cheap to dear and returns the first under which every comparison
holds, or None. What they found on one machine, and why: docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import Shapes, round_up

MULTIPLES = (1, 2, 4, 8, 16)
MAX_ROWS = 1024
WORK = 4e9  # multiply-adds of the longest call of one probe
BLOCK = 5  # queries of a row that scores four drafts
OTHER_BLOCKS = (1, 2, 3, 4, 7, 11, 24, 200)  # queries of other calls
VALUES = 40_000  # 16-bit results compared per call
QUERIES = (1, 4, 8)
VIEWS = ((16, 512), (64, 512), (512, 512))  # the kernel walks over keys in blocks of 512
# both sides of the kernels' block edges, and a chat's usual lengths
LENGTHS = (1, 15, 16, 17, 60, 128, 500, 511, 512, 513, 700, 1100, 2000)


def row_multiple(run: Callable[[Tensor], Tensor], rows: Tensor) -> int | None:
    """Smallest multiple of rows under which a layer treats each row alike.

    run:   the layer, [M, in] -> [M, out], row m depending on row m only
    rows:  [M_max, in], M_max at most MAX_ROWS
    """
    whole = run(rows)
    for multiple in MULTIPLES:
        if all(_same_rows(run, rows, whole, count) for count in _counts(multiple, len(rows))):
            return multiple
    return None


def _counts(multiple: int, most: int) -> Iterator[int]:
    """Row counts that occur: a few rows, a batch of blocks, a chunk of a prompt."""
    wanted = (1, 2, 3, 5, 6, 7, 9, 10, 12, 20, 40, 45, 64, 100, 288, 512)
    yield from sorted({n for w in wanted if (n := round_up(w, multiple)) <= most})


def _same_rows(run: Callable[[Tensor], Tensor], rows: Tensor, whole: Tensor, count: int) -> bool:
    """Rows from the middle of the whole call, so that their place in the call differs as well."""
    start = (len(rows) - count) // 2
    return torch.equal(run(rows[start : start + count]), whole[start : start + count])


def probe_rows(in_features: int, out_features: int, dtype: torch.dtype) -> Tensor:
    """Random rows for a layer of this size, as many as keep the probe short."""
    most = int(WORK / (in_features * out_features))
    count = max(64, min(MAX_ROWS, most))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, in_features, generator=generator).to(dtype)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The attention of one layer: heads, sizes and type, and what it does to the scores."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    shape: AttentionShape

    @property
    def key(self) -> str:
        """What distinguishes this attention from another one."""
        extras = [
            name
            for name, there in (
                ("window", self.shape.window is not None),
                ("softcap", self.shape.softcap is not None),
                ("sinks", self.shape.sinks is not None),
            )
            if there
        ]
        sizes = f"{self.heads}/{self.kv_heads} heads x {self.key_dim}/{self.value_dim}"
        return " ".join([f"attention {self.dtype} {sizes}", *extras])


def attention_shapes(cases: Sequence[AttentionCase], longest: int) -> Shapes | None:
    """Cheapest rounding of queries and key view under which every query's result stands alone.

    longest: tokens per row that will occur; lengths beyond it are not probed
    """
    lengths = [n for n in LENGTHS if n <= longest] or [1]
    inputs = [_Inputs.make(case, max(lengths)) for case in cases]
    for queries, (view, long_view) in product(QUERIES, VIEWS):
        shapes = Shapes(view=view, long_view=long_view, queries=queries, lone_row=False)
        # the longest first: most shapes fail there
        if all(one.stands_alone(shapes, n) for n in reversed(lengths) for one in inputs):
            return shapes
    return None


@dataclass(slots=True)
class _Inputs:
    """Rows of keys and values in a cache, and the last few queries of a row of any length."""

    case: AttentionCase
    query: Tensor  # [R, heads, L, D]
    keys: Tensor  # [R, kv_heads, slots, D]
    values: Tensor

    @classmethod
    def make(cls, case: AttentionCase, longest: int) -> _Inputs:
        generator = torch.Generator().manual_seed(0)
        # a 16-bit result hides most differences of one float32 step, so many values are compared
        wanted = VALUES if case.dtype.itemsize < 4 else 1
        rows = max(2, wanted // (case.heads * case.value_dim * BLOCK))

        def random(heads: int, length: int, dim: int) -> Tensor:
            return torch.randn(rows, heads, length, dim, generator=generator).to(case.dtype)

        slots = round_up(longest, 512) + 1024
        return cls(
            case,
            random(case.heads, min(longest, max(OTHER_BLOCKS)), case.key_dim),
            random(case.kv_heads, slots, case.key_dim),
            random(case.kv_heads, slots, case.value_dim),
        )

    def run(
        self, shapes: Shapes, start: int, count: int, *, rows: int | None = None, more: int = 0
    ) -> Tensor:
        """Queries at positions start .. start + count - 1 of the first rows, [R, heads, count, D].

        rows: how many rows, None for all; more: blocks by which the view is longer than needed
        """
        view = shapes.view_of(start + count)
        for _ in range(more):
            view = shapes.view_of(view + 1)
        at = (start + torch.arange(count)) % self.query.shape[2]
        query = self.query[:rows, :, at]
        positions = torch.arange(start, start + count)[None].expand(len(query), -1)
        group = self.case.heads // self.case.kv_heads
        window = self.case.shape.window
        mask = additive_mask(positions, view, window, group, self.case.dtype, shapes.queries)
        keys, values = self.keys[:rows, :, :view], self.values[:rows, :, :view]
        return attend(self.case.shape, query, keys, values, mask)

    def stands_alone(self, shapes: Shapes, length: int) -> bool:
        """The last queries of rows of `length`: in other calls, alone, over a longer view."""
        count = min(BLOCK, length)
        block = self.run(shapes, length - count, count)  # [R, heads, count, D]
        return (
            all(torch.equal(self.run(shapes, length - count, count, more=n), block) for n in (1, 2))
            and torch.equal(self.run(shapes, length - count, count, rows=1), block[:1])
            and all(self._agrees(shapes, length, other, block) for other in OTHER_BLOCKS)
        )

    def _agrees(self, shapes: Shapes, length: int, count: int, block: Tensor) -> bool:
        """The queries that a call with the last `count` positions shares with `block`."""
        count = min(count, length)
        # wide calls are dear and fill many values by themselves
        rows = None if count <= 2 * BLOCK else 2
        shared = min(count, block.shape[2])
        out = self.run(shapes, length - count, count, rows=rows)
        return torch.equal(out[:, :, -shared:], block[:rows, :, -shared:])
