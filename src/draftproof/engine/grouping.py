"""Schedulers of the rectangular methods: prompts apart from decoding, and equal rows together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftproof.batch import Batch, Row
from draftproof.drafters.base import Drafter
from draftproof.engine.scheduler import Scheduler
from draftproof.executors.base import Executor


@dataclass(kw_only=True)
class PhasedScheduler(Scheduler):
    """Prompts are read in rounds of their own: in a rectangle every row would pay for the longest.

    Rows that decode wait while any row still reads.
    """

    def eligible(self, batch: Batch, target: Executor, drafter: Drafter) -> Sequence[Row]:
        reading = [row for row in batch if not row.decoding]
        return reading or list(batch)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding row; rows with the same `state` form a rectangle without realignment.

    waited: rounds that the row has sat out since it last took part
    """

    row: Row
    state: tuple[int, ...]
    waited: int


class Policy(Protocol):
    """Chooses the rows of a round."""

    def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
        """At most `size` of the candidates, which come in request order and are never none."""


@dataclass(frozen=True, kw_only=True)
class FirstFull:
    """The paper's: the first full group in request order, else the first rows, realigned."""

    def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
        counts = Counter(item.state for item in candidates)
        full = min(size, len(candidates))
        for item in candidates:
            if counts[item.state] >= full:
                return _of_state(candidates, item.state)[:size]
        return candidates[:size]


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest group, full or not, if it fills at least half of the batch; else as FirstFull."""

    def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
        state, count = Counter(item.state for item in candidates).most_common(1)[0]
        if 2 * count >= min(size, len(candidates)):
            return _of_state(candidates, state)[:size]
        return candidates[:size]


@dataclass(frozen=True, kw_only=True)
class Oldest:
    """As FirstFull, but a row that has waited `waiting_limit` rounds runs now, partners or not.

    Rows then wait for at most the limit and as many rounds as the pool has batches.
    """

    waiting_limit: int = 8

    def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
        oldest = sorted(candidates, key=lambda item: -item.waited)
        if oldest[0].waited >= self.waiting_limit:
            return oldest[:size]
        return FirstFull().choose(oldest, size)


def _of_state(candidates: Sequence[Candidate], state: tuple[int, ...]) -> list[Candidate]:
    return [item for item in candidates if item.state == state]


@dataclass(slots=True)
class Grouping:
    """How the decoding rounds were formed; integers only."""

    grouped: int = 0
    fallbacks: int = 0

    @property
    def rounds(self) -> int:
        """Decoding rounds."""
        return self.grouped + self.fallbacks

    @property
    def grouping_rate(self) -> float:
        """Share of decoding rounds whose rows ended in one column: nothing was realigned."""
        return self.grouped / max(1, self.rounds)

    @property
    def fallback_rate(self) -> float:
        """Share of decoding rounds whose rows had to be brought into place."""
        return self.fallbacks / max(1, self.rounds)


@dataclass(kw_only=True)
class GroupedScheduler(Scheduler):
    """ExSpec: of a pool of rows, `group_size` equal ones per round; unequal ones as a last resort.

    sort_by_length: admit short prompts first (results keep the order of the requests)
    """

    group_size: int
    policy: Policy
    sort_by_length: bool = False
    grouping: Grouping = field(default_factory=Grouping)
    _waited: Counter[int] = field(default_factory=Counter)

    def admit(self, batch: Batch) -> None:
        """Give every free row of the pool to the next request."""
        if self.sort_by_length:
            self.waiting = deque(sorted(self.waiting, key=lambda request: len(request.prompt)))
        super().admit(batch)

    def eligible(self, batch: Batch, target: Executor, drafter: Drafter) -> Sequence[Row]:
        rows = sorted(batch, key=lambda row: row.request.index)
        reading = [row for row in rows if not row.decoding]
        return self._reading(reading) if reading else self._decoding(rows, target, drafter)

    def _reading(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Prompts of one length, and equally far: their caches begin unpadded."""
        equal = [row for row in rows if (row.lag, row.kv_len) == (rows[0].lag, rows[0].kv_len)]
        return equal[: self.group_size]

    def _decoding(self, rows: Sequence[Row], target: Executor, drafter: Drafter) -> Sequence[Row]:
        memories = [target, getattr(drafter, "executor", None)]
        candidates = [
            Candidate(row, _state(row, memories), self._waited[row.request.index]) for row in rows
        ]
        chosen = self.policy.choose(candidates, self.group_size)
        if len({item.state for item in chosen}) == 1:
            self.grouping.grouped += 1
        else:
            self.grouping.fallbacks += 1
        self._wait(rows, [item.row for item in chosen])
        return [item.row for item in chosen]

    def _wait(self, rows: Sequence[Row], chosen: Sequence[Row]) -> None:
        self._waited = Counter(
            {row.request.index: self._waited[row.request.index] + 1 for row in rows}
        )
        for row in chosen:
            self._waited[row.request.index] = 0


def _state(row: Row, memories: Sequence[Any]) -> tuple[int, ...]:
    """In which column the row ends in every cache that pads.

    Rows that end in the same column are a rectangle as they lie. In a pool without padding that
    means equal length, the paper's criterion; after a fallback it holds for unequal rows too.
    """
    length = len(row.tokens)
    return tuple(memory.end(row.slot, length) for memory in memories if hasattr(memory, "end"))
