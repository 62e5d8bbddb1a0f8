"""Faults at the end of a row, and on an answer's way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftproof.batch import Row
from draftproof.drafters.base import Drafter
from draftproof.engine.engine import Engine
from draftproof.engine.events import RowRound
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.stopping import Cut
from draftproof.executors.base import Executor
from draftproof.executors.rows import RowsExecutor
from draftproof.faultlab.faults.base import rebuilt
from draftproof.faultlab.faulty_engine import Delivery
from draftproof.forensics.subjects.base import Answer, Inquiry
from draftproof.types import FinishReason


class EosAtTheEndOnly(Engine):
    """Looks for eos at the last token of a block only."""

    def _cut(self, row: Row, offered: Sequence[int]) -> Cut:
        if offered[-1] in row.request.settings.eos_token_id:
            return super()._cut(row, offered)
        settings = replace(row.request.settings, eos_token_id=())
        blind = replace(row, request=replace(row.request, settings=settings))
        return super()._cut(blind, offered)


class StopAfterTheBlock(Engine):
    """Notices a stop string, and ends the row with the whole block."""

    def _cut(self, row: Row, offered: Sequence[int]) -> Cut:
        decision = super()._cut(row, offered)
        if decision.reason is not FinishReason.STOP:
            return decision
        return Cut(min(len(offered), row.budget), FinishReason.STOP)


class LengthAfterTheBlock(Engine):
    """Counts tokens after a block is committed."""

    def _cut(self, row: Row, offered: Sequence[int]) -> Cut:
        decision = super()._cut(row, offered)
        if decision.reason is not FinishReason.LENGTH:
            return decision
        return Cut(len(offered), FinishReason.LENGTH)


class Unbudgeted(Scheduler):
    """K is the same to the last round, however few tokens are left."""

    def _most(self, row: Row, target: Executor, drafter: Drafter) -> int:
        own = drafter.limit(row)
        limit = self.num_speculative_tokens
        return limit if own is None else min(limit, own)


def eos_ignored(engine: Engine, inquiry: Inquiry) -> Engine:
    """See EosAtTheEndOnly."""
    return rebuilt(engine, EosAtTheEndOnly)


def stop_overshoots(engine: Engine, inquiry: Inquiry) -> Engine:
    """See StopAfterTheBlock."""
    return rebuilt(engine, StopAfterTheBlock)


def length_overshoots(engine: Engine, inquiry: Inquiry) -> Engine:
    """See LengthAfterTheBlock; the cache gets room for what should not be there."""
    late, old = rebuilt(engine, LengthAfterTheBlock), engine.target
    assert isinstance(old, RowsExecutor)
    extra = engine.scheduler.num_speculative_tokens + 1
    late.target = RowsExecutor(
        model=old.model, rows=old.rows, capacity=old.capacity + extra, shapes=old.shapes
    )
    late.scheduler = Unbudgeted(
        num_speculative_tokens=engine.scheduler.num_speculative_tokens,
        max_num_batched_tokens=engine.scheduler.max_num_batched_tokens,
    )
    return late


# -- on the way out --------------------------------------------------------------------------------


def _per_round(
    change: Callable[[RowRound], Sequence[int]],
) -> Delivery:
    """A delivery that changes which tokens of a round are handed on, told as offsets in it."""

    def one(answer: Answer) -> Answer:
        kept, seen = [], 0
        for round_ in answer.rounds:
            kept += [seen + offset for offset in change(round_)]
            seen += len(round_.emitted)
        # a token takes its scores along
        tops = [answer.tops[place] for place in kept] if len(answer.tops) == seen else answer.tops
        return replace(answer, ids=tuple(answer.ids[place] for place in kept), tops=tuple(tops))

    return lambda answers, batch: [one(answer) for answer in answers]


def _without_bonus(round_: RowRound) -> Sequence[int]:
    count = len(round_.emitted)
    return range(count - 1 if round_.drafts and count == len(round_.drafts) + 1 else count)


bonus_lost = _per_round(_without_bonus)
blocks_reversed = _per_round(lambda round_: range(len(round_.emitted))[::-1])


def neighbours_exchanged(answers: Sequence[Answer], batch: int) -> list[Answer]:
    """Rows of a batch come back in the order they finish: here, in pairs the wrong way round."""
    order = [i ^ 1 if i ^ 1 < len(answers) and batch > 1 else i for i in range(len(answers))]
    return [answers[i] for i in order]
