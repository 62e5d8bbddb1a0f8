"""One round's drafts: how many of which rows give the most tokens per second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftproof.auto_k.state import AutoKState
from draftproof.phases import Phase

HOPELESS = 0.8  # of the best speed: drafting further still is not looked at
UNEVEN = 1.015  # how much faster it must be that rows draft differently far


@dataclass(frozen=True, slots=True)
class DraftingRow:
    """A row that may draft.

    share: how much of what catching up its draft cache costs this round has to earn; 0: all of it
           is a part of the first draft step
    """

    index: int
    rate: float
    limit: int
    lag: int
    share: float


@dataclass(slots=True)
class _Behind:
    """Rows whose draft caches are caught up together, in as few forwards as they fit in."""

    lag: int = 0
    earned: float = 0.0  # tokens of the lag that this round has to earn

    def add(self, item: DraftingRow) -> None:
        """One more row, if it is behind at all."""
        if item.share:
            self.lag += item.lag
            self.earned += item.share * item.lag

    @property
    def share(self) -> float:
        """How much of the catching up this round has to earn."""
        return self.earned / max(1, self.lag)


@dataclass(kw_only=True, slots=True)
class DraftPlan:
    """One round's choice.

    counts:  drafts that are settled already, by row
    base:    tokens that the target is fed without any others
    plain:   tokens that are emitted without any draft
    reading: tokens of prompts among them. Without any, tokens per second is what counts. Otherwise
             the time is mostly the reading's, and a draft must be worth its own time at the usual
             rate
    """

    state: AutoKState
    counts: list[int]
    base: int
    plain: int
    reading: int
    rate: float = 0.0
    known: dict[tuple[Phase, int], float] = field(default_factory=dict)  # seconds, looked up once

    def best(self, candidates: Sequence[DraftingRow]) -> list[int]:
        """Drafts of every row."""
        if self.reading:
            self.rate = max(self.state.rate, self._pure(candidates))
        value, counts = self._search(candidates)
        near = [item for item in candidates if not item.share]
        if len(near) < len(candidates):  # catching up may not be worth it
            value, counts = max((value, counts), self._search(near), key=lambda found: found[0])
        if not self.reading:
            self.state.expect(value)
        return counts

    def _pure(self, candidates: Sequence[DraftingRow]) -> float:
        """Tokens per second of these rows if nothing else were to do."""
        ready = [replace(item, lag=min(item.lag, 2), share=0.0) for item in candidates]
        return replace(self, base=self.base - self.reading, reading=0)._search(ready)[0]

    def _search(self, candidates: Sequence[DraftingRow]) -> tuple[float, list[int]]:
        """The best number of drafts, and its value.

        For every depth, the drafts up to it are taken in the order of their worth. Rows draft
        equally far unless it is clearly better that they do not: fewer different token counts then
        are met, and what they cost is known well.
        """
        sums = _Sums(self, candidates)
        even, uneven = (sums.value, 0, 0), (-math.inf, 0, 0)
        offers, stride = _offers(candidates), max(1, len(candidates) // 4)
        for deepest in range(1, max((item.limit for item in candidates), default=0) + 1):
            sums.clear()
            chosen = [offer for offer in offers if offer[1] <= deepest]
            for number, offer in enumerate(chosen, 1):
                sums.take(*offer)
                if number < len(chosen) and number % stride == 0:
                    uneven = max(uneven, (sums.value, deepest, number))
            found = (sums.value, deepest, len(chosen))
            even = max(even, found)
            if found[0] < HOPELESS * even[0] and not self.reading:
                break
        bar = even[0] * UNEVEN if not self.reading else even[0]
        value, deepest, number = uneven if uneven[0] > bar else even
        counts = list(self.counts)
        for _, _, item in [offer for offer in offers if offer[1] <= deepest][:number]:
            counts[item.index] += 1
        return value, counts


class _Sums:
    """A round that drafts are added to, one after the other; what it is worth so far."""

    def __init__(self, plan: DraftPlan, candidates: Sequence[DraftingRow]) -> None:
        self._plan, self._settled = plan, sum(plan.counts)
        deepest = max([*plan.counts, *(item.limit for item in candidates)], default=0)
        self._start = [sum(count > depth for count in plan.counts) for depth in range(deepest)]
        self._known = plan.known
        self.clear()

    def clear(self) -> None:
        """Without any drafts but those that are settled."""
        self._steps = list(self._start)
        self._later = sum(map(self._drafting, self._steps[1:]))
        self._lags, self._behind = (self._steps[0] if self._steps else 0), _Behind()
        self._tokens, self._drafts = float(self._plan.plain), 0

    def take(self, worth: float, depth: int, item: DraftingRow) -> None:
        """One more draft."""
        self._tokens += worth
        self._drafts += 1
        if depth == 1:
            self._lags += min(item.lag, 2) if item.share else item.lag
            self._behind.add(item)
        else:
            count = self._steps[depth - 1]
            self._later += self._drafting(count + 1) - self._drafting(count)
        self._steps[depth - 1] += 1

    def _drafting(self, rows: int) -> float:
        return self._seconds(Phase.DRAFT, rows)

    def _seconds(self, part: Phase, size: int) -> float:
        seconds = self._known.get((part, size))
        if seconds is None:
            seconds = self._known[part, size] = self._plan.state.seconds(part, size)
        return seconds

    @property
    def value(self) -> float:
        """Tokens per second, or above the average rate where a prompt is read."""
        plan, seconds, drafts = self._plan, self._seconds, self._drafts
        time = self._later + seconds(Phase.DRAFT, self._lags)
        time += seconds(Phase.HOST, 1 + self._settled + drafts)
        time += seconds(Phase.VERIFY, plan.base + drafts)
        if self._behind.lag:
            time += self._behind.share * seconds(Phase.DRAFT, self._behind.lag)
        if plan.reading:
            return self._tokens - plan.rate * time
        return self._tokens / max(time, 1e-12)


def _offers(candidates: Sequence[DraftingRow]) -> list[tuple[float, int, DraftingRow]]:
    """Drafts by worth, a row's own in their order: what each adds, its depth, its row."""
    offers = [
        (item.rate**depth, depth, item) for item in candidates for depth in range(1, item.limit + 1)
    ]
    offers.sort(key=lambda offer: (-offer[0], offer[1]))
    return offers
