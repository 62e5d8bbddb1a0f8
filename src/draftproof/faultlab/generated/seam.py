"""The seam that every generated fault acts on: one forward of the target, one judgement, one cut.

    tokens -> [before] -> model, layout, cache -> [after] -> logits -> [score] -> verifier
           -> [judge] -> [cut] -> answers -> [deliver]
    prompts -> [ask];  weights -> [weights]

The engine holds nothing of this: its parts are replaced from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.engine import Engine
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.engine.stopping import Cut
from draftproof.executors.layout import RowLayout
from draftproof.executors.rows import RowsExecutor
from draftproof.faultlab.faults.base import rebuilt
from draftproof.faultlab.faulty_engine import Delivery, Rig
from draftproof.faultlab.generated.circumstances import Circumstance, Moment
from draftproof.forensics.subjects.base import Answer, Inquiry
from draftproof.types import Drafts, RaggedTokens, Verdict
from draftproof.verifiers.base import Verifier

MaskEdit = Callable[[Tensor, int, int, int], None]  # mask [F, view], start, count, width
Edit = Callable[[Tensor], Tensor]


@dataclass(kw_only=True)
class Forward:
    """One forward of the target, to be changed before and after it runs.

    ids, positions: [N], filler at the end
    tokens:         what is fed, row by row; `rows` are cache rows
    moments:        one per row
    layout:         masks and slots; see `edit_mask`, `edit_queries`, `edit_attended`
    cache:          keys and values per layer, [rows, kv_heads, slots, D]
    logits:         [sum(keep), V], after the forward
    kept:           what `keep_cache` put aside
    """

    ids: Tensor
    positions: Tensor
    tokens: RaggedTokens
    moments: Sequence[Moment]
    layout: EditedLayout
    cache: Any
    logits: Tensor | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def span(self, place: int) -> slice:
        """Flat indices of a row's tokens."""
        first = sum(self.tokens.counts[:place])
        return slice(first, first + self.tokens.counts[place])

    def lines(self, place: int) -> slice:
        """Lines of the logits that are a row's."""
        first = sum(self.tokens.keep[:place])
        return slice(first, first + self.tokens.keep[place])

    def slots(self, place: int) -> slice:
        """Cache slots that a row writes."""
        start = self.tokens.starts[place]
        return slice(start, start + self.tokens.counts[place])

    def neighbour(self, place: int) -> int:
        """The row beside a row; itself where it is alone."""
        return (place + 1) % len(self.tokens.rows)

    def tensors(self) -> list[Tensor]:
        """Keys and values of all layers."""
        return [*self.cache.keys, *self.cache.values]


@dataclass
class EditedLayout(RowLayout):
    """A layout whose masks, queries and results of attention can be changed per row.

    masks:    by place of the row
    queries:  [1, heads, N, D] -> the same
    attended: [1, N, heads, D] -> the same
    """

    masks_of: dict[int, list[MaskEdit]] = field(default_factory=dict)
    queries: list[Edit] = field(default_factory=list)
    attended: list[Edit] = field(default_factory=list)

    @property
    def by_modules(self) -> bool:
        """Whether attention must be called layer by layer, because of what is changed in it."""
        return bool(self.queries or self.attended)

    def attend(self, shape: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        for edit in self.queries:
            query = edit(query)
        out = super().attend(shape, query, keys, values)
        for edit in self.attended:
            out = edit(out)
        return out

    def _mask(self, index: int, shape: Any, group: int, dtype: Any, device: Any) -> Tensor:
        mask = super()._mask(index, shape, group, dtype, device)  # [R, 1, F, view]
        first = self.tokens.rows.index(self.blocks[index].low)
        touched = range(first, first + len(self.blocks[index].counts))
        if not any(self.masks_of.get(place) for place in touched):
            return mask
        mask = mask.clone()
        for place in touched:
            start, count = self.blocks[index].starts[place - first], self.tokens.counts[place]
            for edit in self.masks_of.get(place, ()):
                edit(mask[place - first, 0], start, count, self.blocks[index].width)
        return mask


def edited(layout: RowLayout) -> EditedLayout:
    """The same plan, open to changes."""
    given = [f.name for f in fields(layout) if f.default is f.default_factory is MISSING]
    return EditedLayout(**{name: getattr(layout, name) for name in given})


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What the verifier is told, for faults of its verdict.

    logits: [sum(K + 1), V]; hits: places of the rows on which the fault acts
    """

    logits: Tensor
    rows: Sequence[Row]
    drafts: Drafts
    hits: Sequence[int]

    def lines(self, place: int) -> slice:
        """Lines of the logits that are a row's."""
        first = sum(count + 1 for count in self.drafts.counts[:place])
        return slice(first, first + self.drafts.counts[place] + 1)


Pass = Callable[[Forward, Sequence[int]], None]


@dataclass(frozen=True, kw_only=True)
class Injection:
    """What an operator does, on whichever part of the seam; None: nothing there."""

    before: Pass | None = None
    after: Pass | None = None
    score: Callable[[Judging], Tensor] | None = None  # other logits
    judge: Callable[[Judging, Verdict], Verdict] | None = None
    cut: Callable[[Row, Sequence[int], Cut, Engine], Cut] | None = None
    rig: Rig | None = None
    ask: Callable[[Inquiry], Inquiry] | None = None
    weights: Callable[[Any], Any] | None = None
    offsets: Callable[[RowRound], Sequence[int]] | None = None  # of a round's tokens, handed on
    deliver: Delivery | None = None


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An injection under its circumstance."""

    injection: Injection
    circumstance: Circumstance


# -- watching --------------------------------------------------------------------------------------


@dataclass
class History:
    """What the rounds so far did to the rows, by cache row. An observer of the engine."""

    engine: Engine
    last: dict[int, RowRound] = field(default_factory=dict)
    ended: bool = False

    def on_round(self, event: RoundEvent) -> None:
        """Called by the engine."""
        self.ended = any(row.finish_reason is not None for row in event.rows)
        for row in event.rows:
            if row.finish_reason is not None:
                self.last.pop(row.slot, None)
            elif row.emitted:
                self.last[row.slot] = row

    def of_forward(self, tokens: RaggedTokens) -> list[Moment]:
        """One per row that is fed."""
        decoding = [row in self.last for row in tokens.rows]
        counts = {c for c, on in zip(tokens.counts, decoding, strict=True) if on}
        flat, found, first = tokens.ids.tolist(), [], 0
        for place, (row, count) in enumerate(zip(tokens.rows, tokens.counts, strict=True)):
            found.append(
                self._moment(row, tokens.starts[place], count, flat[first], len(counts) > 1)
            )
            first += count
        return found

    def of_judging(self, rows: Sequence[Row], drafts: Drafts) -> list[Moment]:
        """One per row that is judged."""
        on = {count for row, count in zip(rows, drafts.counts, strict=True) if row.generated}
        return [
            self._moment(row.slot, row.kv_len, count + 1, row.tokens[-1], len(on) > 1)
            for row, count in zip(rows, drafts.counts, strict=True)
        ]

    def _moment(self, slot: int, start: int, count: int, token: int, unequal: bool) -> Moment:
        row = self.engine.batch.rows.get(slot)
        return Moment(
            start=start,
            count=count,
            token=token,
            decoding=slot in self.last,
            last=self.last.get(slot),
            unequal=unequal,
            ended=self.ended,
            copied=row is not None and row.num_cached_tokens > 0,
        )


def _hits(moments: Sequence[Moment], circumstance: Circumstance) -> list[int]:
    return [place for place, moment in enumerate(moments) if circumstance.holds(moment)]


# -- parts put in the place of the engine's own ----------------------------------------------------


@dataclass
class SeamModel:
    """A bound model with faults before and after its forward."""

    inner: Any
    history: History
    faults: Sequence[Placed]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(
        self, ids: Tensor, positions: Tensor, cache: Any, layout: RowLayout, keep: Tensor
    ) -> Tensor:
        """As BoundModel.forward: ids, positions [N] -> logits [len(keep), V]."""
        one = Forward(
            ids=ids.clone(),
            positions=positions.clone(),
            tokens=layout.tokens,
            moments=self.history.of_forward(layout.tokens),
            layout=edited(layout),
            cache=cache,
        )
        hits = [_hits(one.moments, fault.circumstance) for fault in self.faults]
        for fault, places in zip(self.faults, hits, strict=True):
            if fault.injection.before is not None and places:
                fault.injection.before(one, places)
        logits = self._run(one, keep)
        one.logits = logits.clone()
        for fault, places in zip(self.faults, hits, strict=True):
            if fault.injection.after is not None and places:
                fault.injection.after(one, places)
        return one.logits

    def _run(self, one: Forward, keep: Tensor) -> Tensor:
        one.cache.layout = one.layout
        stack, self.inner.stack = self.inner.stack, None if one.layout.by_modules else self.stack
        try:
            logits: Tensor = self.inner.forward(one.ids, one.positions, one.cache, one.layout, keep)
            return logits
        finally:
            self.inner.stack = stack


@dataclass(frozen=True, kw_only=True)
class SeamVerifier:
    """A verifier with faults in what it is told, and in what it says."""

    inner: Verifier
    history: History
    faults: Sequence[Placed]

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        """logits: [sum(K + 1), V]."""
        moments = self.history.of_judging(rows, drafts)
        hits = [_hits(moments, fault.circumstance) for fault in self.faults]
        for fault, places in zip(self.faults, hits, strict=True):
            if fault.injection.score is not None and places:
                told = Judging(logits=logits.clone(), rows=rows, drafts=drafts, hits=places)
                logits = fault.injection.score(told)
        verdict = self.inner.judge(logits, rows, drafts)
        for fault, places in zip(self.faults, hits, strict=True):
            if fault.injection.judge is not None and places:
                told = Judging(logits=logits, rows=rows, drafts=drafts, hits=places)
                verdict = fault.injection.judge(told, verdict)
        return verdict


class SeamEngine(Engine):
    """An engine with faults where rows end."""

    history: History
    faults: Sequence[Placed] = ()

    def _cut(self, row: Row, offered: Sequence[int]) -> Cut:
        decision = super()._cut(row, offered)
        for fault in self.faults:
            cut = fault.injection.cut
            if cut is not None and self._acts(fault, row, offered):
                decision = cut(row, offered, decision, self)
        return decision

    def right_cut(self, row: Row, offered: Sequence[int]) -> Cut:
        """Where a correct engine ends the row."""
        return super()._cut(row, offered)

    def _acts(self, fault: Placed, row: Row, offered: Sequence[int]) -> bool:
        moment = self.history._moment(row.slot, row.kv_len, len(offered), row.tokens[-1], False)
        return fault.circumstance.holds(moment)


def rig_of(faults: Sequence[Placed]) -> Rig:
    """All faults put into an assembled engine with row-anchored memory."""

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        if any(_in_the_loop(fault.injection) for fault in faults):
            engine = _seamed(engine, faults)
        for fault in faults:
            if fault.injection.rig is not None:
                engine = fault.injection.rig(engine, inquiry)
        return engine

    return rig


def _seamed(engine: Engine, faults: Sequence[Placed]) -> Engine:
    made = rebuilt(engine, SeamEngine)
    history = History(made)
    made.history, made.faults = history, faults
    made.observers = (*made.observers, history)
    target: Any = made.target
    if not isinstance(target, RowsExecutor):
        raise TypeError(f"generated faults need the rows executor, not {type(target)}")
    target.model = SeamModel(target.model, history, faults)  # type: ignore[assignment]
    made.verifier = SeamVerifier(inner=made.verifier, history=history, faults=faults)
    return made


def _in_the_loop(injection: Injection) -> bool:
    parts = (injection.before, injection.after, injection.score, injection.judge, injection.cut)
    return any(part is not None for part in parts)


def delivery_of(faults: Sequence[Placed]) -> Delivery:
    """All faults on the way of the answers."""

    def deliver(answers: Sequence[Answer], batch: int) -> Sequence[Answer]:
        for fault in faults:
            if fault.injection.offsets is not None:
                answers = [_delivered(answer, fault) for answer in answers]
            if fault.injection.deliver is not None:
                answers = fault.injection.deliver(answers, batch)
        return answers

    return deliver


def _delivered(answer: Answer, fault: Placed) -> Answer:
    """A token takes its scores along."""
    assert fault.injection.offsets is not None
    kept: list[int] = []
    seen, last = 0, None
    for one in answer.rounds:
        moment = Moment(
            start=one.kv_len, count=one.fed, token=0, decoding=last is not None, last=last
        )
        count = len(one.emitted)
        offsets = fault.injection.offsets(one) if fault.circumstance.holds(moment) else range(count)
        kept += [seen + offset for offset in offsets]
        seen, last = seen + count, one
    tops = answer.tops
    if len(tops) == seen:
        tops = tuple(tops[place] for place in kept)
    return replace(answer, ids=tuple(answer.ids[place] for place in kept), tops=tops)


def blank(mask: Tensor, width: int, query: int) -> Tensor:
    """The lines of a mask [F, view] that belong to one query of a block: one per query head."""
    return mask[query::width]
