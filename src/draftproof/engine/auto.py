"""K from what forwards cost on this machine and from what the rows accept, both measured."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from draftproof.batch import Row
from draftproof.drafters.base import Drafter
from draftproof.engine.acceptance import Acceptance
from draftproof.engine.planning import Candidate, Learned, Plan
from draftproof.engine.schedule import Adaptive
from draftproof.engine.timing import Part, Stages, TimedExecutor
from draftproof.executors.base import Executor

FIRST = 4  # K of the first look, before anything was timed
LOOKING = 0.25  # share of the rows that take it
PROBE = 2  # drafts of a row that looks whether drafting pays again
REGRET = 0.012  # share of plain decoding's time that such looks may cost
BEHIND = 8  # a draft cache further back than this is caught up for the rounds to come
AMORTISED = 4.0  # tokens per round, roughly: what catching up costs is spread over the rest


@dataclass(kw_only=True)
class Auto:
    """Per round, the K of each row with the most expected tokens per second of the whole batch.

    The j-th draft of a row with acceptance a is worth a^j tokens. The drafts of all rows are
    taken in the order of their worth; how many of them is decided by the time that the round is
    expected to take with them:

        host(drafts) + sum over steps of draft(rows) + verify(rows + drafts)

    0 is plain decoding. Where it wins, one row drafts a little now and then, as often as
    `REGRET` of the time allows, so that drafts that have become good are noticed.

    A row whose choices depend on its drafts (rejection sampling) is left to `Adaptive`, which
    measures no time: the same seed gives the same row again.
    """

    learned: Learned = field(default_factory=Learned)
    now: Callable[[], float] = time.perf_counter
    fixed: Adaptive = field(default_factory=Adaptive)
    _acceptance: Acceptance = field(init=False)
    _stages: Stages | None = field(default=None, init=False)
    _draft: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._acceptance = Acceptance(pool=self.learned.accepted, spread=self.learned.spread)

    def watch(self, target: Executor, drafter: Drafter) -> Executor:
        """Time these two from now on; returns what the loop must use as its target."""
        self._stages = Stages.on(target.device, self.learned.record, self.now)
        inner: Any = getattr(drafter, "executor", None)
        if isinstance(inner, TimedExecutor):  # a drafter that was used in an earlier run
            inner = inner.inner
        if inner is not None:
            timed_draft, holder = TimedExecutor(inner, self._stages, Part.DRAFT), cast(Any, drafter)
            # one that lets nobody replace its executor is timed as a whole
            with contextlib.suppress(AttributeError):
                holder.executor = timed_draft
                self._draft = timed_draft
        timed: Any = TimedExecutor(target, self._stages, Part.VERIFY)
        executor: Executor = timed
        return executor

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        self._acceptance.read(rows)
        counts = self._counts(rows, most, reading) if rows else []
        if self._stages is not None:
            self._stages.start(1 + sum(counts))
        return counts

    def _counts(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        fixed = [row.request.settings.drawn_from_draft for row in rows]
        counts = [
            self.fixed.wanted(row.stats, limit) if is_fixed else 0
            for row, limit, is_fixed in zip(rows, most, fixed, strict=True)
        ]
        free = [i for i, limit in enumerate(most) if limit and not fixed[i]]
        if not free:
            return counts
        candidates = [self._candidate(i, rows[i], most[i]) for i in free]
        if reading and not self.learned.rate:
            return counts  # what a draft is worth beside a prompt is known when decoding is
        if self._unseen:
            return self._first(counts, candidates)
        plan = Plan(
            learned=self.learned,
            counts=counts,
            base=len(rows) + reading + sum(counts),
            plain=len(rows),
            reading=reading,
        )
        found = plan.best(candidates)
        return found if any(found) or reading else self._probe(plan, candidates)

    @property
    def _unseen(self) -> bool:
        """Whether no round with drafts was timed yet."""
        parts = self.learned.parts
        unseen = self._draft is not None and not parts[Part.DRAFT].known
        return unseen or not parts[Part.VERIFY].known

    def _first(self, counts: list[int], candidates: Sequence[Candidate]) -> list[int]:
        """A first look, by as many rows as it takes to learn something of it."""
        looking = sorted(candidates, key=lambda item: item.lag)
        for item in looking[: math.ceil(LOOKING * len(looking))]:
            counts[item.index] = min(FIRST, item.limit)
        return counts

    def _candidate(self, index: int, row: Row, limit: int) -> Candidate:
        lag = 0 if self._draft is None else len(row.tokens) - self._draft.lengths[row.slot]
        share = min(1.0, AMORTISED / row.budget) if lag > BEHIND else 0.0
        return Candidate(index, self._acceptance.rate(row), limit, lag, share)

    def _probe(self, plan: Plan, candidates: Sequence[Candidate]) -> list[int]:
        """Plain decoding, or one row's look, once enough plain rounds have paid for it."""
        learned, row = self.learned, min(candidates, key=lambda item: item.lag)
        drafts, plain = min(PROBE, row.limit), learned.seconds(Part.VERIFY, plan.base)
        learned.credit += REGRET * plain
        price = learned.seconds(Part.DRAFT, row.lag) + learned.seconds(
            Part.VERIFY, plan.base + drafts
        )
        price += (drafts - 1) * learned.seconds(Part.DRAFT, 1) - plain
        counts = [0] * len(plan.counts)
        if learned.credit >= price:
            learned.credit = max(0.0, min(learned.credit - price, price))
            counts[row.index] = drafts
        return counts
