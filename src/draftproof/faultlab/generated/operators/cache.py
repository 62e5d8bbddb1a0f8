"""Operators on the KV cache: slots, lengths, copies between rows, and what is read of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from draftproof.engine.engine import Engine
from draftproof.faultlab.faults.kv_cache import Rollback
from draftproof.faultlab.generated.circumstances import When
from draftproof.faultlab.generated.operators.base import (
    ALWAYS,
    UNKNOWN,
    Draw,
    Need,
    Operator,
    named,
)
from draftproof.faultlab.generated.seam import Forward, Injection
from draftproof.forensics.subjects.base import Inquiry

STALE = named("stale KV")
MIXED = named("row mix-up")
BATCH = frozenset({Need.BATCH})


# -- slots -----------------------------------------------------------------------------------------

Spoil = Callable[[Forward, int, Tensor], None]  # place of the row; its [kv_heads, slots, D]


def spoiling(spoil: Spoil, *, keys: bool = True, values: bool = True) -> Injection:
    """Something done to what the rows have cached, after they are fed."""

    def after(one: Forward, places: Sequence[int]) -> None:
        chosen = [*(one.cache.keys if keys else ()), *(one.cache.values if values else ())]
        for place in places:
            for tensor in chosen:
                spoil(one, place, tensor[one.tokens.rows[place]])

    return Injection(after=after)


def overwritten(draw: Draw) -> Injection:
    """The new entry also lands one slot too early, on a good one."""

    def spoil(one: Forward, place: int, row: Tensor) -> None:
        start = one.tokens.starts[place]
        row[:, start - 1] = row[:, start]

    return spoiling(spoil)


def zeroed(draw: Draw) -> Injection:
    """A good entry is zeroed and keeps its weight in the softmax."""
    back = draw.rng.choice((1, 3))

    def spoil(one: Forward, place: int, row: Tensor) -> None:
        row[:, max(0, one.tokens.starts[place] - back)] = 0

    return spoiling(spoil)


def exchanged(draw: Draw) -> Injection:
    """The keys of two entries change places; their values stay."""

    def spoil(one: Forward, place: int, row: Tensor) -> None:
        start = one.tokens.starts[place]
        row[:, [start - 1, start]] = row[:, [start, start - 1]]

    return spoiling(spoil, values=False)


def old_values(draw: Draw) -> Injection:
    """The values of the new entry are those of the entry before it."""

    def spoil(one: Forward, place: int, row: Tensor) -> None:
        start = one.tokens.starts[place]
        row[:, start] = row[:, start - 1]

    return spoiling(spoil, keys=False)


def not_written(draw: Draw) -> Injection:
    """The first entry of the block is not written: what lay in its slot stays."""

    def before(one: Forward, places: Sequence[int]) -> None:
        rows = {place: (one.tokens.rows[place], one.tokens.starts[place]) for place in places}
        one.kept["not written"] = [
            (tensor, row, slot, tensor[row, :, slot].clone())
            for tensor in one.tensors()
            for row, slot in rows.values()
        ]

    def after(one: Forward, places: Sequence[int]) -> None:
        for tensor, row, slot, old in one.kept["not written"]:
            tensor[row, :, slot] = old

    return Injection(before=before, after=after)


# -- lengths ---------------------------------------------------------------------------------------


def sliding(holes: Callable[[int], int]) -> Injection:
    """Rows whose next entry lies beyond, or before, its slot after a rejection."""

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        target: Any = engine.target
        engine.target = Rollback(target, holes)
        return engine

    return Injection(rig=rig)


def too_long(draw: Draw) -> Injection:
    """A rejection leaves some rejected entries."""
    many = draw.rng.choice((1, 2))
    return sliding(lambda rejected: min(many, rejected))


def too_short(draw: Draw) -> Injection:
    """A rejection takes back a good entry, too."""
    return sliding(lambda rejected: -1)


# -- rows of a batch -------------------------------------------------------------------------------


def neighbours_entry(draw: Draw) -> Injection:
    """The new entry of a row is that of the row beside it."""

    def after(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            other = one.neighbour(place)
            mine, theirs = one.tokens.rows[place], one.tokens.rows[other]
            for tensor in one.tensors():
                slot = tensor[theirs, :, one.tokens.starts[other]]
                tensor[mine, :, one.tokens.starts[place]] = slot

    return Injection(after=after)


def neighbours_logits(draw: Draw) -> Injection:
    """A row is given the logits of the row beside it."""

    def after(one: Forward, places: Sequence[int]) -> None:
        assert one.logits is not None
        right = one.logits.clone()
        for place in places:
            mine, theirs = one.lines(place), one.lines(one.neighbour(place))
            many = min(mine.stop - mine.start, theirs.stop - theirs.start)
            one.logits[mine.start : mine.start + many] = right[theirs.start : theirs.start + many]

    return Injection(after=after)


def neighbours_token(draw: Draw) -> Injection:
    """A row is fed the token of the row beside it."""

    def before(one: Forward, places: Sequence[int]) -> None:
        right = one.ids.clone()
        for place in places:
            other = one.span(one.neighbour(place)).start
            one.ids[one.span(place).start] = right[other]

    return Injection(before=before)


def written_to_neighbour(draw: Draw) -> Injection:
    """The new entry also lands in the row beside, on its last good one."""

    def after(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            other = one.neighbour(place)
            mine, theirs = one.tokens.rows[place], one.tokens.rows[other]
            if other == place or not one.tokens.starts[other]:
                continue
            for tensor in one.tensors():
                slot = tensor[mine, :, one.tokens.starts[place]]
                tensor[theirs, :, one.tokens.starts[other] - 1] = slot

    return Injection(after=after)


# -- content ---------------------------------------------------------------------------------------


def another_token(draw: Draw) -> Injection:
    """A token is fed as another one, as a broken line of an embedding table would be."""
    instead = draw.rng.randrange(draw.vocab_size)

    def before(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            one.ids[one.span(place).start] = instead

    return Injection(before=before)


def noise(draw: Draw) -> Injection:
    """The logits of a row are lifted for one token id."""
    token, lift = draw.rng.randrange(draw.vocab_size), draw.rng.choice((3.0, 8.0))

    def after(one: Forward, places: Sequence[int]) -> None:
        assert one.logits is not None
        for place in places:
            one.logits[one.lines(place), token] += lift

    return Injection(after=after)


RARE = (When.ONE_IN_N, When.TOKEN_ID, When.BEYOND_LENGTH)
OPERATORS = (
    Operator(
        name="overwritten",
        family="cache slot",
        story="a new entry lands on a good one",
        right=STALE,
        make=overwritten,
    ),
    Operator(
        name="zeroed",
        family="cache slot",
        story="a good entry is zeroed",
        right=STALE,
        make=zeroed,
    ),
    Operator(
        name="exchanged",
        family="cache slot",
        story="keys of two entries change places",
        right=STALE,
        make=exchanged,
    ),
    Operator(
        name="old_values",
        family="cache slot",
        story="an entry keeps the values of the one before",
        right=STALE,
        make=old_values,
    ),
    Operator(
        name="not_written",
        family="cache slot",
        story="a new entry is not written",
        right=STALE,
        make=not_written,
    ),
    Operator(
        name="too_long",
        family="cache length",
        story="a rejection leaves rejected entries",
        right=STALE,
        make=too_long,
        whens=ALWAYS,
    ),
    Operator(
        name="too_short",
        family="cache length",
        story="a rejection takes back a good entry",
        right=STALE,
        make=too_short,
        whens=ALWAYS,
    ),
    Operator(
        name="neighbours_entry",
        family="batch index",
        story="a row's new entry is its neighbour's",
        right=MIXED,
        make=neighbours_entry,
        needs=BATCH,
    ),
    Operator(
        name="neighbours_logits",
        family="batch index",
        story="a row gets its neighbour's logits",
        right=MIXED,
        make=neighbours_logits,
        needs=BATCH,
    ),
    Operator(
        name="neighbours_token",
        family="batch index",
        story="a row is fed its neighbour's token",
        right=MIXED,
        make=neighbours_token,
        needs=BATCH,
    ),
    Operator(
        name="written_to_neighbour",
        family="batch index",
        story="a row writes into its neighbour",
        right=MIXED,
        make=written_to_neighbour,
        needs=BATCH,
    ),
    Operator(
        name="another_token",
        family="content",
        story="one token is fed as another",
        right=named(UNKNOWN),
        make=another_token,
        whens=RARE,
    ),
    Operator(
        name="lifted_token",
        family="content",
        story="logits of one id are too high",
        right=named(UNKNOWN, "processors", "other defaults"),
        make=noise,
        whens=(*RARE, When.AFTER_REJECTION),
    ),
)
