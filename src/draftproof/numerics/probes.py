"""Probes: is one row's result the same, bit for bit, whatever else is in the call?

Each probe tries shapes from cheap to dear and returns the first under which every comparison
holds, or None. What they found on one machine, and why: docs/numerics.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import NEVER, SIZES, Rows, Shapes, round_up
from draftproof.numerics.torch_private import has_tiles

CPU = torch.device("cpu")
MULTIPLES = (1, 2, 4, 8, 16, 32)  # of the flat token count
SURE_SIZES = 22  # tried for every weight, however large: up to 64
TWICE = 32  # rows of the largest call that is made at two places
WORK = 1.2e10  # multiply-adds of a probe, beyond SURE_SIZES: half a second on two plain cores
# What reading a weight costs, in rows of products: with AMX, 100 rows take little more than one.
READING, READING_AMX = 16, 128
USUAL = (1, 5, 20, 40, 160, 512)  # rows of a round: one to many sequences, chunks of prompts
BATCH = 5  # rows that attend in one call
FEW_ROWS = 2  # where what matters is something else
BLOCK = 5  # queries of a row that scores four drafts
OTHER_BLOCKS = (1, 2, 3, 4, 7, 11, 24, 200)  # queries of other calls
WIDE_BLOCK = 800  # a long chunk of a prompt, which the kernel cuts into larger pieces
QUERIES = (1, 4, 8, 16)
# Folded queries of one call at most. The kernel takes them in blocks of 32, from 192 on of 64, from
# 768 on of 256, and a block of another size may be added up in another order.
FOLDED = (NEVER, 767, 191, 32)
VIEW, LONG_VIEW = 16, 512  # a vector; the block in which the kernel walks over the keys
# both sides of the edges of vectors and key blocks, and a few between
LENGTHS = (1, 16, 17, 60, 300, 511, 512, 513, 1100, 2000)


def row_rule(run: Callable[[Tensor], Tensor], rows: Tensor) -> Rows | None:
    """The cheapest set of row counts under which a layer treats each row alike; None: no such set.

    run:   the layer, [M, in] -> [M, out], row m depending on row m only
    rows:  [M_max, in]; sizes up to M_max are tried

    Every size that the rule allows is run, and gives the same bits as every other one. A layer
    that also minds where in the call a row stands has no rule.
    """
    alike: list[list[_Call]] = []  # calls whose rows agree
    for number, size in enumerate(size for size in SIZES if size < len(rows)):
        middle = (len(rows) - size) // 2
        if size <= TWICE:
            call = _Call(run, rows, middle, size)
            if not call.agrees(_Call(run, rows, middle + 1, size)):
                continue
        else:
            # dear: made once, but so that a row is an odd number of places further on than in the
            # call before, where it would show if places in a block of rows were not alike
            call = _Call(run, rows, max(0, middle - number % 2), size)
        group = next((group for group in alike if call.agrees(group[-1])), None)
        if group is None:
            alike.append([call])
        else:
            group.append(call)
    sure = (group for group in alike if len(group) > 1 or group[0].size <= TWICE)
    rules = [Rows(tuple(call.size for call in group)) for group in sure]
    wide = rows.dtype.itemsize == 2 and has_tiles()
    reading = READING_AMX if wide and rows.device.type == "cpu" else READING
    return min(
        (rule for rule in rules if rule.most > 1),
        key=lambda rule: _cost(rule, reading),
        default=None,
    )


class _Call:
    """`size` consecutive rows of many, from `start` on, and what a layer made of them."""

    def __init__(self, run: Callable[[Tensor], Tensor], rows: Tensor, start: int, size: int):
        self.start, self.size = start, size
        self.out = run(rows[start : start + size])

    def agrees(self, other: _Call) -> bool:
        """Whether the rows that both contain, if any, came out the same."""
        low = max(self.start, other.start)
        high = min(self.start + self.size, other.start + other.size)
        mine, theirs = (c.out[low - c.start : high - c.start] for c in (self, other))
        return torch.equal(mine, theirs)


def _cost(rule: Rows, reading: int) -> float:
    """What rounds of the usual sizes cost under a rule, relative to what they need, multiplied."""
    return math.prod(_rows_run(rule, count, reading) / (reading + count) for count in USUAL)


def _rows_run(rule: Rows, count: int, reading: int) -> int:
    piece = rule.piece(count)
    return -(-count // piece) * (reading + rule.filled(piece))


def cancelling(in_features: int, out_features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows [M, in] and a weight [out, in] whose products are zero but for rounding.

    Every term of a sum has its opposite somewhere else in the sum, so what is left is the
    rounding of the partial sums: it changes with the order of the additions in nearly every
    element, and a 16-bit result shows it, which for ordinary numbers it would round away.
    """
    generator = torch.Generator().manual_seed(0)
    affordable = WORK / (in_features * out_features)
    run = [sum(SIZES[: n + 1]) for n in range(len(SIZES))]
    count = next(n for n in reversed(range(len(SIZES))) if run[n] <= affordable or n < SURE_SIZES)
    count = SIZES[count] + 1
    order = torch.randperm(in_features, generator=generator)
    one, other = order[: in_features // 2], order[in_features // 2 :][: in_features // 2]
    rows = torch.randn(count, in_features, generator=generator, dtype=torch.float32).to(dtype)
    shape = min(out_features, 512), in_features
    weight = torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
    # terms of very different sizes, or 16-bit products would add up without any rounding
    rows *= torch.exp2(torch.randint(-6, 7, (in_features,), generator=generator)).to(dtype)
    rows[:, other] = -rows[:, one]
    weight[:, other] = weight[:, one]
    return rows, weight.repeat(-(-out_features // len(weight)), 1)[:out_features]


def whole_vectors(widths: Iterable[int], dtype: torch.dtype) -> int:
    """Smallest multiple of rows of these widths that fills whole pairs of vectors.

    Functions of single elements run two vectors at a time, and what is left over at the end of a
    call is computed by other code, whose exponential may differ in the last bit.
    """
    vector = 64 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 32  # bytes
    pair = 2 * vector // dtype.itemsize
    return max((pair // math.gcd(pair, width) for width in widths), default=1)


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


def attention_shapes(
    cases: Sequence[AttentionCase], longest: int, device: torch.device = CPU
) -> Shapes | None:
    """Cheapest rounding of queries and key view under which every query's result stands alone.

    A 16-bit result hides most differences of one float32 step, and a window hides most keys. So
    the same attention in float32 without a window says what is needed at least, and then the
    attention itself is asked whether that is enough.

    longest: tokens per row that will occur; lengths beyond it are not probed
    device:  whose kernels are asked
    """
    # Where nothing passes with sums that cancel, ordinary numbers decide: they show differences
    # that change a token now and then, but not every last bit (docs/numerics.md).
    found = (_cheapest(cases, longest, device, cancels=cancels) for cancels in (True, False))
    return next((shapes for shapes in found if shapes is not None), None)


def _cheapest(
    cases: Sequence[AttentionCase], longest: int, device: torch.device, *, cancels: bool
) -> Shapes | None:
    inputs = _inputs(cases, longest, device, cancels)
    short = [_Inputs(one.case, LONG_VIEW, FEW_ROWS, device, cancels) for one in inputs]
    group = max((case.heads // case.kv_heads for case in cases), default=1)
    for most, queries in itertools.product(FOLDED, QUERIES):
        shapes = Shapes(
            view=VIEW,
            long_view=LONG_VIEW,
            queries=queries,
            width=max(1, most // group),
            lone_row=False,
        )
        barred = {view for one in short for view in one.barred(shapes)}
        shapes = replace(shapes, barred=tuple(sorted(barred)))
        if _all_stand_alone(inputs, shapes, longest):
            return shapes
    return None


def attention_holds(
    cases: Sequence[AttentionCase], shapes: Shapes, longest: int, device: torch.device = CPU
) -> bool:
    """Whether every query's result stands alone under these shapes."""
    return _all_stand_alone(_inputs(cases, longest, device, True), shapes, longest)


def _all_stand_alone(inputs: Sequence[_Inputs], shapes: Shapes, longest: int) -> bool:
    # the longest first: most shapes fail there
    return all(one.stands_alone(shapes, n) for one in inputs for n in reversed(_lengths(longest)))


def _lengths(longest: int) -> list[int]:
    return [n for n in LENGTHS if n <= longest] or [1]


def _inputs(
    cases: Sequence[AttentionCase], longest: int, device: torch.device, cancels: bool
) -> list[_Inputs]:
    most = max(_lengths(longest))
    plain = {twin.key: twin for twin in map(_open_twin, cases)}
    own = [case for case in cases if case.key not in plain]
    slots = round_up(most, LONG_VIEW) + 2 * LONG_VIEW
    return [_Inputs(case, slots, BATCH, device, cancels) for case in (*plain.values(), *own)]


def _open_twin(case: AttentionCase) -> AttentionCase:
    return replace(case, dtype=torch.float32, shape=replace(case.shape, window=None))


class _Inputs:
    """Rows of keys and values in a cache, and the last few queries of a row of any length.

    Whatever the length, the keys that the last query sees come in pairs of the same key with
    opposite values: their weights are equal, so the result is zero but for rounding, and shows
    the order in which it was added up in 16 bits as well.
    """

    def __init__(
        self, case: AttentionCase, slots: int, rows: int, device: torch.device, cancels: bool
    ) -> None:
        self.case = case
        self.cancels = cancels
        self.slots = slots
        generator = torch.Generator().manual_seed(0)

        def random(heads: int, length: int, dim: int) -> Tensor:
            values = torch.randn(rows, heads, length, dim, generator=generator, dtype=torch.float32)
            return values.to(device, case.dtype)

        self.query = random(case.heads, min(slots, WIDE_BLOCK), case.key_dim)
        self.keys = random(case.kv_heads, self.slots, case.key_dim)  # [R, kv_heads, slots, D]
        self.values = random(case.kv_heads, self.slots, case.value_dim)
        self._paired: tuple[int, Tensor, Tensor] | None = None

    def cache(self, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of rows that end at `end`."""
        if not self.cancels:
            return self.keys, self.values
        if self._paired is None or self._paired[0] != end:
            window = self.case.shape.window or end
            begin = max(0, end - window)
            order = begin + torch.randperm(
                end - begin, generator=torch.Generator().manual_seed(end)
            )
            one, other = order[: len(order) // 2], order[len(order) // 2 :][: len(order) // 2]
            keys, values = self.keys.clone(), self.values.clone()
            keys[:, :, other] = keys[:, :, one]
            values[:, :, other] = -values[:, :, one]
            self._paired = end, keys, values
        return self._paired[1:]

    def run(
        self, shapes: Shapes, start: int, count: int, view: int, *, rows: int | None = None
    ) -> Tensor:
        """Queries at positions start .. start + count - 1 of the first rows, [R, heads, count, D].

        rows: how many, None for all
        """
        keys, values = (part[:rows, :, :view] for part in self.cache(start + count))
        group, window = self.case.heads // self.case.kv_heads, self.case.shape.window
        parts = []
        every = torch.arange(start, start + count, device=self.query.device)
        for positions in every.split(shapes.width):
            query = self.query[:rows, :, positions % self.query.shape[2]]
            rowwise = positions[None].expand(len(query), -1)
            mask = additive_mask(rowwise, view, window, group, self.case.dtype, shapes.queries)
            parts.append(attend(self.case.shape, query, keys, values, mask))
        return torch.cat(parts, dim=2)

    def barred(self, shapes: Shapes) -> list[int]:
        """Short views over which a result is another one than over the long view.

        Matrix products cut long sums into pieces, and where they cut depends on the length.
        """
        return [
            view
            for view in range(VIEW, LONG_VIEW, VIEW)
            if any(self._changes(shapes, view, count) for count in (1, BLOCK, 24))
        ]

    def _changes(self, shapes: Shapes, view: int, count: int) -> bool:
        count = min(count, view)
        short, long = (
            self.run(shapes, view - count, count, length, rows=FEW_ROWS)
            for length in (view, LONG_VIEW)
        )
        return not torch.equal(short, long)

    def stands_alone(self, shapes: Shapes, length: int) -> bool:
        """The last queries of rows of `length`: in other calls, alone, over a longer view."""
        count = min(BLOCK, length)
        view = shapes.view_of(length)
        block = self.run(shapes, length - count, count, view)  # [R, heads, count, D]
        longer = {shapes.view_of(view + 1), shapes.view_of(view + LONG_VIEW), self.slots}
        return (
            all(
                torch.equal(self.run(shapes, length - count, count, more), block) for more in longer
            )
            and torch.equal(self.run(shapes, length - count, count, view, rows=1), block[:1])
            and all(self._agrees(shapes, length, other, block) for other in self._others(length))
        )

    def _others(self, length: int) -> tuple[int, ...]:
        """The wide block once, at the longest length: it is dear."""
        wide = length > WIDE_BLOCK and round_up(length, LONG_VIEW) + 2 * LONG_VIEW == self.slots
        return (*OTHER_BLOCKS, WIDE_BLOCK) if wide else OTHER_BLOCKS

    def _agrees(self, shapes: Shapes, length: int, count: int, block: Tensor) -> bool:
        """The queries that a call with the last `count` positions shares with `block`."""
        count = min(count, length)
        # wide calls are dear and fill many values by themselves
        rows = None if count <= 2 * BLOCK else FEW_ROWS if count < WIDE_BLOCK else 1
        shared = min(count, block.shape[2])
        out = self.run(shapes, length - count, count, shapes.view_of(length), rows=rows)
        return torch.equal(out[:, :, -shared:], block[:rows, :, -shared:])
