"""How likely a draft is accepted: of one row, and of all rows together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.batch import Row

POOLED = 300.0  # decided drafts that all rows together remember
OWN = 64.0  # and a row
ALIKE = 48.0  # drafts that the others' rate weighs in a row's own, where rows are alike
APART = 4.0  # where they are not at all
SPREAD = 400.0  # pairs of decided drafts of one row that say how alike rows are
IDLE = 0.98  # what a row that does not draft keeps of its memory in each round


@dataclass(slots=True)
class DecidedDrafts:
    """Decided drafts: accepted ones, and the first rejected one of each round. Old ones fade."""

    accepted: float = 0.0
    rejected: float = 0.0

    @property
    def weight(self) -> float:
        """Drafts remembered."""
        return self.accepted + self.rejected

    def add(self, accepted: int, rejected: int, most: float) -> None:
        """Remember more, and `most` in all."""
        self.accepted += accepted
        self.rejected += rejected
        self.fade(min(1.0, most / max(self.weight, 1e-9)))

    def fade(self, share: float) -> None:
        """Keep a share."""
        self.accepted *= share
        self.rejected *= share


def first_guess() -> DecidedDrafts:
    """Before any draft was seen, drafts are expected to be worth trying; it fades soon."""
    return DecidedDrafts(accepted=2.1, rejected=0.9)


@dataclass(slots=True)
class Spread:
    """How much rows differ, from finished ones: variance between rows beyond that of chance.

    Of a row with n decided drafts of which x were accepted, (x - n p)^2 is n p (1 - p) on average
    if all rows have the same rate p, and up to n times that if each has its own.

    excess: of all rows, in units of p (1 - p), what was found beyond chance
    pairs:  what it would be if every row accepted all or nothing
    """

    excess: float = 0.0
    pairs: float = SPREAD

    def add(self, row: DecidedDrafts, general: float) -> None:
        """A row is finished."""
        count, chance = row.weight, max(general * (1.0 - general), 0.01)
        self.excess += (row.accepted - count * general) ** 2 / chance - count
        self.pairs += count * (count - 1.0)
        share = min(1.0, 20 * SPREAD / self.pairs)
        self.excess, self.pairs = self.excess * share, self.pairs * share

    @property
    def weight(self) -> float:
        """Drafts that the others' rate weighs in a row's own."""
        alike = max(self.excess, 0.0) / self.pairs
        return min(ALIKE, max(APART, 1.0 / max(alike, 1e-9) - 1.0))


@dataclass(slots=True)
class _Own:
    """A row, what it accepted, and its counters when they were last read."""

    row: Row
    memory: DecidedDrafts = field(default_factory=DecidedDrafts)
    seen: DecidedDrafts = field(default_factory=DecidedDrafts)  # the same, nothing forgotten
    read: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Acceptance:
    """Probability that a draft is accepted once those before it were, by row.

    A new row is expected to be like the others; a row that sat out for long is so again.
    """

    pool: DecidedDrafts = field(default_factory=first_guess)
    spread: Spread = field(default_factory=Spread)
    _rows: dict[int, _Own] = field(default_factory=dict)

    def read(self, rows: Sequence[Row]) -> None:
        """Take in what the last round did to the rows."""
        for row in rows:
            own = self._of(row)
            stats = row.stats
            found = (stats.num_accepted_draft_tokens, stats.correction_tokens)
            accepted, rejected = found[0] - own.read[0], found[1] - own.read[1]
            own.read = found
            if accepted or rejected:
                own.memory.add(accepted, rejected, OWN)
                own.seen.add(accepted, rejected, 10 * OWN)
                self.pool.add(accepted, rejected, POOLED)
            else:
                own.memory.fade(IDLE)

    def rate(self, row: Row) -> float:
        """In (0, 1)."""
        memory = self._of(row).memory
        weight = self.spread.weight
        return (memory.accepted + weight * self.general) / (memory.weight + weight)

    @property
    def general(self) -> float:
        """Of all rows."""
        return self.pool.accepted / self.pool.weight

    def _of(self, row: Row) -> _Own:
        own = self._rows.get(row.slot)
        if own is None or own.row is not row:
            if own is not None and own.seen.weight > 1:
                self.spread.add(own.seen, self.general)
            own = self._rows[row.slot] = _Own(row)
        return own
