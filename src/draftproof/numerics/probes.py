"""Probes: is one row's result the same, bit for bit, whatever else is in the call?

Each probe tries shapes from cheap to dear and returns the first under which every comparison
holds, or None. What they found on one machine, and why: docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import Shapes, round_up

MULTIPLES = (1, 2, 4, 8, 16, 32)
MIN_ROWS, MAX_ROWS = 320, 1024  # 320: the logits of 32 rows that score up to nine tokens each
WORK = 4e9  # multiply-adds of the longest call of one probe, beyond MIN_ROWS
BLOCK = 5  # queries of a row that scores four drafts
OTHER_BLOCKS = (1, 2, 3, 4, 7, 11, 24, 200)  # queries of other calls
WIDE_BLOCK = 800  # a long chunk of a prompt, which the kernel cuts into larger pieces
VALUES = 3_000  # 16-bit results compared per call
QUERIES = (1, 4, 8)
VIEW, LONG_VIEW = 16, 512  # a vector; the block in which the kernel walks over the keys
# both sides of the edges of vectors and key blocks, and a few between
LENGTHS = (1, 16, 17, 60, 300, 511, 512, 513, 1100, 2000)


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
    """Row counts that occur: a few rows, a batch of blocks, a chunk of a prompt.

    The larger ones are left out for weights so large that `most` is small: with as many rows
    again as the whole call, the probe would take too long.
    """
    few, many = (1, 2, 3, 5, 6, 7, 9, 10, 12, 20, 40), (45, 64, 100, 288, 512)
    wanted = few + tuple(count for count in many if count < most / 4 or most == MAX_ROWS)
    yield from sorted({n for w in wanted if (n := round_up(w, multiple)) <= most})


def _same_rows(run: Callable[[Tensor], Tensor], rows: Tensor, whole: Tensor, count: int) -> bool:
    """Rows from the middle of the whole call, so that their place in the call differs as well."""
    start = (len(rows) - count) // 2
    return torch.equal(run(rows[start : start + count]), whole[start : start + count])


def whole_vectors(widths: Iterable[int], dtype: torch.dtype) -> int:
    """Smallest multiple of rows of these widths that fills whole pairs of vectors.

    Functions of single elements run two vectors at a time, and what is left over at the end of a
    call is computed by other code, whose exponential may differ in the last bit.
    """
    vector = 64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32  # bytes
    pair = 2 * vector // dtype.itemsize
    return max((pair // math.gcd(pair, width) for width in widths), default=1)


def probe_rows(in_features: int, out_features: int, dtype: torch.dtype) -> Tensor:
    """Random rows for a layer of this size, as many as keep the probe short."""
    most = int(WORK / (in_features * out_features))
    count = max(MIN_ROWS, min(MAX_ROWS, most))
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

    A 16-bit result hides most differences of one float32 step, and a window hides most keys. So
    the same attention in float32 without a window says what is needed at least, and then the
    attention itself is asked whether that is enough.

    longest: tokens per row that will occur; lengths beyond it are not probed
    """
    lengths = [n for n in LENGTHS if n <= longest] or [1]
    plain = {twin.key: twin for twin in map(_open_twin, cases)}
    twins = [_Inputs.make(case, max(lengths)) for case in plain.values()]
    own = [_Inputs.make(case, max(lengths)) for case in cases if case.key not in plain]
    for queries in QUERIES:
        barred = {view for one in twins for view in one.barred(queries)}
        shapes = Shapes(
            view=VIEW,
            long_view=LONG_VIEW,
            barred=tuple(sorted(barred)),
            queries=queries,
            lone_row=False,
        )
        # the longest first: most shapes fail there
        if all(one.stands_alone(shapes, n) for one in twins + own for n in reversed(lengths)):
            return shapes
    return None


def _open_twin(case: AttentionCase) -> AttentionCase:
    return replace(case, dtype=torch.float32, shape=replace(case.shape, window=None))


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
        wanted = VALUES if case.dtype.itemsize < 4 else 1
        rows = max(2, wanted // (case.heads * case.value_dim * BLOCK))

        def random(heads: int, length: int, dim: int) -> Tensor:
            return torch.randn(rows, heads, length, dim, generator=generator).to(case.dtype)

        slots = round_up(longest, LONG_VIEW) + 2 * LONG_VIEW
        return cls(
            case,
            random(case.heads, min(longest, WIDE_BLOCK), case.key_dim),
            random(case.kv_heads, slots, case.key_dim),
            random(case.kv_heads, slots, case.value_dim),
        )

    def run(
        self, queries: int, start: int, count: int, view: int, *, rows: int | None = None
    ) -> Tensor:
        """Queries at positions start .. start + count - 1 of the first rows, [R, heads, count, D].

        queries: their number is rounded up to a multiple of this; rows: how many, None for all
        """
        at = (start + torch.arange(count)) % self.query.shape[2]
        query = self.query[:rows, :, at]
        positions = torch.arange(start, start + count)[None].expand(len(query), -1)
        group = self.case.heads // self.case.kv_heads
        window = self.case.shape.window
        mask = additive_mask(positions, view, window, group, self.case.dtype, queries)
        keys, values = self.keys[:rows, :, :view], self.values[:rows, :, :view]
        return attend(self.case.shape, query, keys, values, mask)

    def barred(self, queries: int) -> list[int]:
        """Short views over which a result is another one than over the long view.

        Matrix products cut long sums into pieces, and where they cut depends on the length.
        """
        return [
            view
            for view in range(VIEW, LONG_VIEW, VIEW)
            if any(self._changes(queries, view, count) for count in (1, BLOCK, 24))
        ]

    def _changes(self, queries: int, view: int, count: int) -> bool:
        count = min(count, view)
        short, long = (self.run(queries, view - count, count, v) for v in (view, LONG_VIEW))
        return not torch.equal(short, long)

    def stands_alone(self, shapes: Shapes, length: int) -> bool:
        """The last queries of rows of `length`: in other calls, alone, over a longer view."""
        count = min(BLOCK, length)
        view = shapes.view_of(length)
        block = self.run(shapes.queries, length - count, count, view)  # [R, heads, count, D]
        longer = {shapes.view_of(view + 1), shapes.view_of(view + LONG_VIEW), self.keys.shape[2]}
        return (
            all(
                torch.equal(self.run(shapes.queries, length - count, count, more), block)
                for more in longer
            )
            and torch.equal(
                self.run(shapes.queries, length - count, count, view, rows=1), block[:1]
            )
            and all(self._agrees(shapes, length, other, block) for other in self._others(length))
        )

    def _others(self, length: int) -> tuple[int, ...]:
        """The wide block once, at the longest length: it is dear."""
        wide = (
            length > WIDE_BLOCK
            and round_up(length, LONG_VIEW) + 2 * LONG_VIEW == self.keys.shape[2]
        )
        return (*OTHER_BLOCKS, WIDE_BLOCK) if wide else OTHER_BLOCKS

    def _agrees(self, shapes: Shapes, length: int, count: int, block: Tensor) -> bool:
        """The queries that a call with the last `count` positions shares with `block`."""
        count = min(count, length)
        # wide calls are dear and fill many values by themselves
        rows = None if count <= 2 * BLOCK else 2 if count < WIDE_BLOCK else 1
        shared = min(count, block.shape[2])
        out = self.run(shapes.queries, length - count, count, shapes.view_of(length), rows=rows)
        return torch.equal(out[:, :, -shared:], block[:rows, :, -shared:])
