"""Operators around the loop: prompts, ends, delivery, other weights and number formats."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.engine import Engine
from draftproof.engine.events import RowRound
from draftproof.engine.stopping import Cut
from draftproof.faultlab.generated.circumstances import When
from draftproof.faultlab.generated.operators.base import (
    ALWAYS,
    Draw,
    Need,
    Operator,
    named,
)
from draftproof.faultlab.generated.seam import Forward, Injection
from draftproof.forensics.subjects.base import Answer, Inquiry
from draftproof.types import FinishReason

PROMPT = named("other prompt")
ENDS = named("ending inside a block")
HARNESS = named("harness")
DELIVERY = named("delivery order")
ARITHMETIC = named("other weights or arithmetic")
EOS = frozenset({Need.EOS})
ROUNDS = (When.ALWAYS, When.AFTER_REJECTION, When.AFTER_ACCEPTANCE, When.BEYOND_LENGTH)


# -- prompts ---------------------------------------------------------------------------------------


def prompting(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Injection:
    """Other prompts than those that were asked."""

    def ask(inquiry: Inquiry) -> Inquiry:
        tasks = tuple(replace(task, prompt=change(task.prompt)) for task in inquiry.tasks)
        return replace(inquiry, tasks=tasks)

    return Injection(ask=ask)


def doubled_start(draw: Draw) -> Injection:
    """The first token comes twice, as a bos that two sides add."""
    return prompting(lambda prompt: (prompt[0], *prompt))


def cut_left(draw: Draw) -> Injection:
    """The first token is missing."""
    return prompting(lambda prompt: prompt[1:] or prompt)


def cut_right(draw: Draw) -> Injection:
    """The last token is missing."""
    return prompting(lambda prompt: prompt[:-1] or prompt)


def template(draw: Draw) -> Injection:
    """Some tokens follow the prompt, as another chat template makes it."""
    more = tuple(draw.rng.randrange(draw.vocab_size) for _ in range(2))
    return prompting(lambda prompt: (*prompt, *more))


def cut_when_long(draw: Draw) -> Injection:
    """Prompts beyond a length lose their beginning."""
    limit = draw.rng.choice((6, 10))
    return prompting(lambda prompt: prompt[-limit:])


# -- ends ------------------------------------------------------------------------------------------

CutRule = Callable[[Row, Sequence[int], Cut, Engine], Cut]


def rest_of_block(row: Row, offered: Sequence[int], decision: Cut, engine: Engine) -> Cut:
    """A row that ends in the middle of a block keeps the rest of it."""
    if decision.reason is not FinishReason.EOS:
        return decision
    return Cut(min(len(offered), row.budget), decision.reason)


def last_of_block_only(row: Row, offered: Sequence[int], decision: Cut, engine: Engine) -> Cut:
    """eos is looked for at the last token of a block only."""
    many = min(len(offered), row.budget)
    if decision.reason is not FinishReason.EOS or decision.count == len(offered):
        return decision
    return Cut(many, FinishReason.LENGTH if many == row.budget else None)


def early_in_block(row: Row, offered: Sequence[int], decision: Cut, engine: Engine) -> Cut:
    """A row that ends in the middle of a block loses its last token."""
    if decision.reason is None or decision.count < 2:
        return decision
    return Cut(decision.count - 1, decision.reason)


def with_neighbour(row: Row, offered: Sequence[int], decision: Cut, engine: Engine) -> Cut:
    """A row ends in the round after its neighbour."""
    return Cut(decision.count, decision.reason or FinishReason.LENGTH)


def no_eos(draw: Draw) -> Injection:
    """The candidate does not end at eos."""
    return Injection(ask=lambda inquiry: replace(inquiry, eos_token_id=()))


def one_less(draw: Draw) -> Injection:
    """The candidate ends one token early at the limit."""
    return Injection(
        ask=lambda inquiry: replace(inquiry, max_new_tokens=max(1, inquiry.max_new_tokens - 1))
    )


def sampled(draw: Draw) -> Injection:
    """The candidate samples, and the reference does not."""
    temperature = draw.rng.choice((0.7, 1.0))
    return Injection(ask=lambda inquiry: replace(inquiry, temperature=temperature))


# -- delivery --------------------------------------------------------------------------------------


def delivering(offsets: Callable[[RowRound], Sequence[int]]) -> Injection:
    """Other tokens of a round are handed on, or in another order."""
    return Injection(offsets=offsets)


def reversed_block(round_: RowRound) -> Sequence[int]:
    """In the wrong order."""
    return range(len(round_.emitted))[::-1]


def first_lost(round_: RowRound) -> Sequence[int]:
    """Without the first of a block of several."""
    return range(1 if len(round_.emitted) > 1 else 0, len(round_.emitted))


def last_twice(round_: RowRound) -> Sequence[int]:
    """With the last of a block of several twice."""
    count = len(round_.emitted)
    return [*range(count), count - 1] if count > 1 else range(count)


def last_lost(round_: RowRound) -> Sequence[int]:
    """Without the last of a block of several."""
    count = len(round_.emitted)
    return range(count - 1 if count > 1 else count)


def rotated(answers: Sequence[Answer], batch: int) -> Sequence[Answer]:
    """Each row of a batch gets the answer of the next one."""
    if batch < 2:
        return answers
    found: list[Answer] = []
    for first in range(0, len(answers), batch):
        group = list(answers[first : first + batch])
        found += [*group[1:], group[0]]
    return found


# -- weights and number formats --------------------------------------------------------------------


def rounded(tensor: Tensor, bits: int, dim: int) -> Tensor:
    """On a grid of 2 ** bits steps, symmetric, one scale per line along `dim`."""
    top = 2 ** (bits - 1) - 1
    scale = tensor.abs().amax(dim, keepdim=True).clamp(min=1e-12) / top
    grid: Tensor = (tensor / scale).round().clamp(-top, top) * scale
    return grid


@torch.no_grad()
def _changed(model: Any, change: Callable[[Tensor], Tensor]) -> Any:
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(change(parameter))
    return other


def rounded_weights(draw: Draw) -> Injection:
    """Weights rounded to 8 or 4 bits."""
    bits = draw.rng.choice((8, 4))
    return Injection(weights=lambda model: _changed(model, lambda w: rounded(w, bits, 1)))


def other_weights(draw: Draw) -> Injection:
    """A checkpoint that was trained a little further."""
    size, seed = draw.rng.choice((0.02, 0.05)), draw.rng.randrange(1000)
    generator = torch.Generator().manual_seed(seed)

    def change(weight: Tensor) -> Tensor:
        kick = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        noise: Tensor = size * weight.std() * kick
        return weight + noise

    return Injection(weights=lambda model: _changed(model, change))


def rounded_cache(draw: Draw) -> Injection:
    """Keys and values rounded to 8 or 4 bits as they are cached."""
    bits = draw.rng.choice((8, 4))

    def after(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            row, slots = one.tokens.rows[place], one.slots(place)
            for tensor in one.tensors():
                new = tensor[row, :, slots]
                tensor[row, :, slots] = rounded(new.float(), bits, -1).to(new.dtype)

    return Injection(after=after)


def rounded_keys(draw: Draw) -> Injection:
    """Keys alone rounded to 4 bits as they are cached."""

    def after(one: Forward, places: Sequence[int]) -> None:
        for place in places:
            row, slots = one.tokens.rows[place], one.slots(place)
            for tensor in one.cache.keys:
                new = tensor[row, :, slots]
                tensor[row, :, slots] = rounded(new.float(), 4, -1).to(new.dtype)

    return Injection(after=after)


def _prompt(name: str, story: str, make: Callable[[Draw], Injection]) -> Operator:
    return Operator(name=name, family="prompt", story=story, right=PROMPT, make=make, whens=ALWAYS)


def _end(name: str, story: str, rule: CutRule, *, needs: frozenset[Need] = EOS) -> Operator:
    return Operator(
        name=name,
        family="stopping",
        story=story,
        right=ENDS,
        make=lambda draw: Injection(cut=rule),
        whens=ROUNDS,
        needs=needs,
    )


def _delivered(
    name: str, story: str, offsets: Callable[[RowRound], Sequence[int]], right: frozenset[str]
) -> Operator:
    return Operator(
        name=name,
        family="delivery",
        story=story,
        right=right,
        make=lambda draw: delivering(offsets),
        whens=ROUNDS,
    )


def _arithmetic(name: str, story: str, make: Callable[[Draw], Injection]) -> Operator:
    return Operator(
        name=name,
        family="arithmetic",
        story=story,
        right=ARITHMETIC,
        make=make,
        whens=ALWAYS,
        prefill=True,
    )


LOST = DELIVERY | named("bonus/correction")
OPERATORS = (
    _prompt("doubled_start", "the first token comes twice", doubled_start),
    _prompt("cut_left", "the first token is missing", cut_left),
    _prompt("cut_right", "the last token is missing", cut_right),
    _prompt("template", "tokens of a template follow", template),
    _prompt("cut_when_long", "long prompts lose their beginning", cut_when_long),
    _end("rest_of_block", "a row keeps its block beyond eos", rest_of_block),
    _end("last_of_block_only", "eos is seen at the end of a block only", last_of_block_only),
    _end("early_in_block", "a row loses its last token", early_in_block),
    Operator(
        name="with_neighbour",
        family="stopping",
        story="a row ends after its neighbour",
        right=ENDS | named("row mix-up"),
        make=lambda draw: Injection(cut=with_neighbour),
        whens=(When.NEIGHBOUR_ENDED,),
        needs=frozenset({Need.EOS, Need.BATCH}),
    ),
    Operator(
        name="no_eos",
        family="other rules",
        story="the candidate does not end at eos",
        right=HARNESS,
        make=no_eos,
        whens=ALWAYS,
        useful=frozenset(),
        needs=EOS,
    ),
    Operator(
        name="one_less",
        family="other rules",
        story="the candidate ends one token early",
        right=HARNESS,
        make=one_less,
        whens=ALWAYS,
        useful=frozenset(),
    ),
    Operator(
        name="sampled",
        family="other rules",
        story="the candidate samples",
        right=named("sampled instead of greedy", "sampling distribution", "other defaults"),
        make=sampled,
        whens=ALWAYS,
    ),
    _delivered("reversed_block", "a block comes in the wrong order", reversed_block, DELIVERY),
    _delivered("first_lost", "the first token of a block is lost", first_lost, LOST),
    _delivered("last_twice", "the last token of a block comes twice", last_twice, LOST),
    _delivered("last_lost", "the last token of a block is lost", last_lost, LOST),
    Operator(
        name="rotated",
        family="delivery",
        story="rows get each other's answers",
        right=named("row mix-up"),
        make=lambda draw: Injection(deliver=rotated),
        whens=ALWAYS,
        needs=frozenset({Need.BATCH}),
    ),
    _arithmetic("rounded_weights", "weights of 8 or 4 bits", rounded_weights),
    _arithmetic("other_weights", "another checkpoint", other_weights),
    _arithmetic("rounded_cache", "a KV cache of 8 or 4 bits", rounded_cache),
    _arithmetic("rounded_keys", "keys of 4 bits", rounded_keys),
)
