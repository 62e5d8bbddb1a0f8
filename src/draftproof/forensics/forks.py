"""First divergences with what is known of them, and what a control showed."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.forensics.compare import Divergence
from draftproof.forensics.subjects.base import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """The first divergence of a row, with what is known about it.

    gap:       distance of the two tokens in the reference's own scores, None where not shown
    bounded:   the gap is a lower bound: one of the tokens is not among the likeliest
    steps:     the gap in steps of the dtype at that magnitude
    near:      within the noise; None where that cannot be said
    overshoot: tokens more (or less) than the reference where one side merely ended earlier
    """

    divergence: Divergence
    context: int
    gap: float | None = None
    bounded: bool = False
    steps: float | None = None
    near: bool | None = None
    overshoot: int | None = None

    @property
    def row(self) -> int:
        """Index of the task."""
        return self.divergence.row

    @property
    def end(self) -> bool:
        """All tokens agree; one side has ended and the other has not."""
        return self.overshoot is not None

    @property
    def hard(self) -> bool:
        """Another token, and no near tie, as far as anybody can tell."""
        return not self.end and self.near is not True


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one control showed.

    ran:   False where the subjects cannot do it; `note` then says what is missing
    forks: against the reference, in the arithmetic of the controls
    stand_in: it was the reference that ran, because the candidate cannot be asked for this
    """

    name: str
    ran: bool = True
    note: str = ""
    rows: int = 0
    errors: int = 0
    forks: tuple[Fork, ...] = ()
    run: Run | None = None
    stand_in: bool = False

    @property
    def hard(self) -> tuple[Fork, ...]:
        """Other tokens that no rounding explains."""
        return tuple(fork for fork in self.forks if fork.hard)

    @property
    def ends(self) -> tuple[Fork, ...]:
        """Rows that agree until one side ends: a question of its own."""
        return tuple(fork for fork in self.forks if fork.end)

    @property
    def clean(self) -> bool:
        """It ran, every row answered, and no token differs beyond the noise."""
        return self.ran and self.errors == 0 and not self.hard

    @property
    def broken(self) -> bool:
        """It ran, and some token differs beyond the noise."""
        return self.ran and bool(self.hard)


def cannot(name: str, why: str) -> Outcome:
    """A control that these subjects cannot do."""
    return Outcome(name=name, ran=False, note=why)
