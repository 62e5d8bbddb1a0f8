"""Operators on positions, masks, and what attention reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftproof.faultlab.generated.operators.base import (
    IN_BLOCKS,
    IN_ROWS,
    UNKNOWN,
    Draw,
    Need,
    Operator,
    named,
)
from draftproof.faultlab.generated.seam import Forward, Injection, MaskEdit, blank

POSITIONS = named("positions")
MASK = named("padding mask")
FORWARD = named(UNKNOWN, "verifying forward")


# -- positions -------------------------------------------------------------------------------------

Move = Callable[[Forward, int, Tensor], Tensor]  # place of the row, its positions [count]


def moving(move: Move) -> Injection:
    """Other positions for the rows on which the fault acts."""

    def before(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            span = one.span(place)
            one.positions[span] = move(one, place, one.positions[span]).clamp(min=0)

    return Injection(before=before)


def shifted(draw: Draw) -> Injection:
    """By a few positions, the same for all tokens of a block."""
    by = draw.rng.choice((-2, -1, 1, 2, 5))
    return moving(lambda one, place, own: own + by)


def of_longest(draw: Draw) -> Injection:
    """Counted from the longest row of the batch, as if padding counted."""
    return moving(lambda one, place, own: own + max(one.tokens.starts) - one.tokens.starts[place])


def of_neighbour(draw: Draw) -> Injection:
    """Counted from the length of the row beside it."""

    def move(one: Forward, place: int, own: Tensor) -> Tensor:
        return own + one.tokens.starts[one.neighbour(place)] - one.tokens.starts[place]

    return moving(move)


def standing(draw: Draw) -> Injection:
    """All tokens of a block at the position of its first."""
    return moving(lambda one, place, own: own[:1].expand(len(own)).clone())


def in_steps(draw: Draw) -> Injection:
    """Positions of a block advance by two."""
    return moving(lambda one, place, own: own + torch.arange(len(own)))


def of_prompt(draw: Draw) -> Injection:
    """Positions start again some tokens before the block."""
    back = draw.rng.choice((4, 8))
    return moving(lambda one, place, own: own % back + back)


# -- masks -----------------------------------------------------------------------------------------


def masking(edit: MaskEdit) -> Injection:
    """Another mask for the rows on which the fault acts."""

    def before(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            one.layout.masks_of.setdefault(place, []).append(edit)

    return Injection(before=before)


def future_visible(draw: Draw) -> Injection:
    """Queries of a block see the drafts behind them."""

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        for query in range(count):
            blank(mask, width, query)[:, start : start + count] = 0

    return masking(edit)


def newest_hidden(draw: Draw) -> Injection:
    """The newest cached token is hidden."""
    many = draw.rng.choice((1, 2))

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        mask[:, max(1, start - many) : start] = -torch.inf

    return masking(edit)


def oldest_hidden(draw: Draw) -> Injection:
    """The first tokens of the prompt are hidden."""
    many = draw.rng.choice((1, 2))

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        mask[:, : min(many, start)] = -torch.inf

    return masking(edit)


def stale_visible(draw: Draw) -> Injection:
    """Slots behind the end are visible: what rejected drafts or other rows have left there."""
    many = draw.rng.choice((1, 3))

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        mask[:, start + count : start + count + many] = 0

    return masking(edit)


def block_apart(draw: Draw) -> Injection:
    """Queries of a block do not see the drafts before them, but themselves alone."""

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        for query in range(count):
            blank(mask, width, query)[:, start : start + query] = -torch.inf

    return masking(edit)


def windowed(draw: Draw) -> Injection:
    """Only the last tokens are visible, in a model without a sliding window."""
    size = draw.rng.choice((6, 10))

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        for query in range(count):
            blank(mask, width, query)[:, : max(0, start + query + 1 - size)] = -torch.inf

    return masking(edit)


def unwindowed(draw: Draw) -> Injection:
    """All tokens are visible, in a model with a sliding window."""

    def edit(mask: Tensor, start: int, count: int, width: int) -> None:
        for query in range(count):
            blank(mask, width, query)[:, : start + query + 1] = 0

    return masking(edit)


# -- scale, heads, layers --------------------------------------------------------------------------


def scaled_queries(draw: Draw) -> Injection:
    """Attention scores of the row's tokens are off by a factor."""
    factor = draw.rng.choice((0.5, 0.8, 1.25, 2.0))

    def before(one: Forward, places: Sequence[int]) -> None:
        spans = [one.span(place) for place in places]

        def edit(query: Tensor) -> Tensor:  # [1, heads, N, D]
            query = query.clone()
            for span in spans:
                query[:, :, span] *= factor
            return query

        one.layout.queries.append(edit)

    return Injection(before=before)


def attending(change: Callable[[Tensor], Tensor]) -> Injection:
    """Something done to what attention returns, [n, heads, D] of a row's tokens."""

    def before(one: Forward, places: Sequence[int]) -> None:
        spans = [one.span(place) for place in places]

        def edit(out: Tensor) -> Tensor:  # [1, N, heads, D]
            out = out.clone()
            for span in spans:
                out[0, span] = change(out[0, span])
            return out

        one.layout.attended.append(edit)

    return Injection(before=before)


def lost_head(draw: Draw) -> Injection:
    """The first head of every layer returns nothing."""

    def change(out: Tensor) -> Tensor:
        out[:, 0] = 0
        return out

    return attending(change)


def exchanged_heads(draw: Draw) -> Injection:
    """The heads come out in the reverse order."""
    return attending(lambda out: out.flip(1))


def scaled_output(draw: Draw) -> Injection:
    """What attention returns is off by a factor, as a wrong norm makes it."""
    factor = draw.rng.choice((0.6, 1.5))
    return attending(lambda out: out * factor)


def first_query_for_all(draw: Draw) -> Injection:
    """All tokens of a block get the attention of its first."""
    return attending(lambda out: out[:1].expand_as(out))


BATCH = frozenset({Need.BATCH})
OPERATORS = (
    Operator(
        name="shifted",
        family="positions",
        story="positions are off by a few",
        right=POSITIONS,
        make=shifted,
    ),
    Operator(
        name="of_longest",
        family="positions",
        story="a row counts from the longest one",
        right=POSITIONS | named("row mix-up"),
        make=of_longest,
        needs=BATCH,
    ),
    Operator(
        name="of_neighbour",
        family="positions",
        story="a row counts from the one beside it",
        right=POSITIONS | named("row mix-up"),
        make=of_neighbour,
        needs=BATCH,
    ),
    Operator(
        name="standing",
        family="positions",
        story="all tokens of a block have one position",
        right=POSITIONS,
        make=standing,
        whens=IN_BLOCKS,
    ),
    Operator(
        name="in_steps",
        family="positions",
        story="positions of a block advance by two",
        right=POSITIONS,
        make=in_steps,
        whens=IN_BLOCKS,
    ),
    Operator(
        name="of_prompt",
        family="positions",
        story="positions start again within the row",
        right=POSITIONS,
        make=of_prompt,
        whens=IN_ROWS,
    ),
    Operator(
        name="future_visible",
        family="mask",
        story="a block's queries see the drafts behind them",
        right=MASK | FORWARD,
        make=future_visible,
        whens=IN_BLOCKS,
    ),
    Operator(
        name="newest_hidden",
        family="mask",
        story="the newest cached tokens are hidden",
        right=MASK | named("stale KV"),
        make=newest_hidden,
    ),
    Operator(
        name="oldest_hidden",
        family="mask",
        story="the first tokens are hidden",
        right=MASK | named("cache window"),
        make=oldest_hidden,
    ),
    Operator(
        name="stale_visible",
        family="mask",
        story="slots behind the end are visible",
        right=MASK | named("stale KV"),
        make=stale_visible,
    ),
    Operator(
        name="block_apart",
        family="mask",
        story="a block's queries do not see the drafts before them",
        right=MASK | FORWARD,
        make=block_apart,
        whens=IN_BLOCKS,
    ),
    Operator(
        name="windowed",
        family="mask",
        story="only the last tokens are visible",
        right=MASK | named("cache window"),
        make=windowed,
        whens=IN_ROWS,
    ),
    Operator(
        name="unwindowed",
        family="mask",
        story="a sliding window is forgotten",
        right=MASK | named("cache window"),
        make=unwindowed,
        needs=frozenset({Need.WINDOW}),
    ),
    Operator(
        name="scaled_queries",
        family="forward",
        story="attention scores are off by a factor",
        right=FORWARD,
        make=scaled_queries,
    ),
    Operator(
        name="lost_head",
        family="forward",
        story="one head returns nothing",
        right=FORWARD,
        make=lost_head,
    ),
    Operator(
        name="exchanged_heads",
        family="forward",
        story="heads come out in another order",
        right=FORWARD,
        make=exchanged_heads,
    ),
    Operator(
        name="scaled_output",
        family="forward",
        story="attention's output is off by a factor",
        right=FORWARD,
        make=scaled_output,
    ),
    Operator(
        name="first_query_for_all",
        family="forward",
        story="a block's tokens all get the first one's attention",
        right=FORWARD,
        make=first_query_for_all,
        whens=IN_BLOCKS,
    ),
)
