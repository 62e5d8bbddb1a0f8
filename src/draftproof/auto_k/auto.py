"""The schedule that chooses K itself: see `Auto`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.auto_k.acceptance import Acceptance
from draftproof.auto_k.planning import DraftingRow, DraftPlan
from draftproof.auto_k.state import AutoKState
from draftproof.auto_k.timing import PhaseTimer
from draftproof.batch import Row
from draftproof.drafters.base import CachingDrafter, Drafter
from draftproof.engine.schedule import Adaptive
from draftproof.phases import Phase, RoundTimer

FIRST = 4  # K of the first look, before anything was timed: what is drafted where K is not chosen
LOOKING = 0.25  # share of the rows that take it: enough to time it, and cheap if drafts are useless
PROBE = 2  # drafts of a row that looks whether drafting pays again: one may be luck
REGRET = 0.012  # share of plain decoding's time that such looks may cost: below what can be felt
BEHIND = 8  # tokens; a draft cache further back than this is caught up for the rounds to come
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

    state: AutoKState = field(default_factory=AutoKState)
    now: Callable[[], float] = time.perf_counter
    fixed: Adaptive = field(default_factory=Adaptive)
    _acceptance: Acceptance = field(init=False)
    _drafter: CachingDrafter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._acceptance = Acceptance(pool=self.state.accepted, spread=self.state.spread)

    def start(self, device: torch.device, drafter: Drafter) -> RoundTimer:
        self._drafter = drafter if isinstance(drafter, CachingDrafter) else None
        return PhaseTimer.on(device, self.state.record, now=self.now)

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        self._acceptance.read(rows)
        fixed = [row.request.settings.drawn_from_draft for row in rows]
        counts = [
            self.fixed.wanted(row.stats, limit) if is_fixed else 0
            for row, limit, is_fixed in zip(rows, most, fixed, strict=True)
        ]
        free = [i for i, limit in enumerate(most) if limit and not fixed[i]]
        if not free or (reading and not self.state.rate):
            return counts  # what a draft is worth beside a prompt is known when decoding is
        drafting = [self._drafting(i, rows[i], most[i]) for i in free]
        if self._unseen:
            return self._first(counts, drafting)
        plan = DraftPlan(
            state=self.state,
            counts=counts,
            base=len(rows) + reading + sum(counts),
            plain=len(rows),
            reading=reading,
        )
        found = plan.best(drafting)
        return found if any(found) or reading else self._probe(plan, drafting)

    @property
    def _unseen(self) -> bool:
        """Whether no round with drafts was timed yet."""
        costs = self.state.costs
        unseen = self._drafter is not None and not costs[Phase.DRAFT].known
        return unseen or not costs[Phase.VERIFY].known

    def _first(self, counts: list[int], drafting: Sequence[DraftingRow]) -> list[int]:
        """A first look, by as many rows as it takes to learn something of it."""
        looking = sorted(drafting, key=lambda item: item.lag)
        for item in looking[: math.ceil(LOOKING * len(looking))]:
            counts[item.index] = min(FIRST, item.limit)
        return counts

    def _drafting(self, index: int, row: Row, limit: int) -> DraftingRow:
        lag = 0 if self._drafter is None else self._drafter.lag(row)
        share = min(1.0, AMORTISED / row.budget) if lag > BEHIND else 0.0
        return DraftingRow(index, self._acceptance.rate(row), limit, lag, share)

    def _probe(self, plan: DraftPlan, drafting: Sequence[DraftingRow]) -> list[int]:
        """Plain decoding, or one row's look, once enough plain rounds have paid for it."""
        state, row = self.state, min(drafting, key=lambda item: item.lag)
        drafts, plain = min(PROBE, row.limit), state.seconds(Phase.VERIFY, plan.base)
        price = state.seconds(Phase.DRAFT, row.lag)
        price += (drafts - 1) * state.seconds(Phase.DRAFT, 1)
        price += state.seconds(Phase.VERIFY, plan.base + drafts) - plain
        counts = [0] * len(plan.counts)
        if state.affords(price, income=REGRET * plain):
            counts[row.index] = drafts
        return counts
