"""The phases of a round, and who is told of them: the only way to learn what a round costs."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """What a round consists of; the size of a phase in brackets."""

    HOST = "host"  # from the choice of K to the first forward: look-ups (1 + drafts wanted)
    DRAFT = "draft"  # one draft step (tokens fed to the draft)
    VERIFY = "verify"  # the target's forward, and the judgement (tokens fed to the target)


class RoundTimer(Protocol):
    """Told of every phase as it begins, by the loop and by a drafter that runs a model.

    enter(HOST) -> enter(DRAFT) -> enter(DRAFT) -> ... -> enter(VERIFY) -> finish
    """

    def enter(self, phase: Phase, size: int) -> None:
        """A phase begins, and the one before it is over; HOST begins a round."""

    def finish(self) -> None:
        """The round's tokens are on the host."""


class Untimed:
    """Tells nobody."""

    def enter(self, phase: Phase, size: int) -> None:
        """Nothing happens."""

    def finish(self) -> None:
        """Nothing happens."""


UNTIMED = Untimed()
