"""When a fault acts: what a row is going through in a forward, and the conditions on it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum

from draftproof.engine.events import RowRound


class When(StrEnum):
    """Circumstances under which a fault acts on a row that decodes."""

    ALWAYS = "always"
    AFTER_REJECTION = "after a rejection"
    AFTER_ACCEPTANCE = "after a full acceptance"
    NEIGHBOUR_ENDED = "when a neighbour ends"
    UNEQUAL_K = "rows of unequal K"
    BEYOND_LENGTH = "beyond a length"
    PREFIX_REUSE = "with prefix reuse"
    ONE_IN_N = "one token in n"
    TOKEN_ID = "for one token id"


# Kinds that name the circumstance and not the operator: no wrong answer, since from outside they
# are often all that can be told.
USEFUL: dict[When, frozenset[str]] = {
    When.AFTER_REJECTION: frozenset({"stale KV"}),
    When.NEIGHBOUR_ENDED: frozenset({"row mix-up"}),
    When.UNEQUAL_K: frozenset({"row mix-up"}),
    When.BEYOND_LENGTH: frozenset({"cache window"}),
    When.PREFIX_REUSE: frozenset({"stale KV"}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One row in one forward of the target.

    start:    position of the first token fed
    count:    tokens fed
    token:    the first token fed: of a decoding row the last one it emitted
    decoding: whether the row has emitted anything
    last:     its round before; None for a row that has emitted one token at most
    unequal:  whether the rows that decode were given different numbers of drafts
    ended:    whether another row ended in the round before
    copied:   whether the row began with a copy of another row's prefix
    """

    start: int
    count: int
    token: int
    decoding: bool
    last: RowRound | None = None
    unequal: bool = False
    ended: bool = False
    copied: bool = False

    @property
    def rejected(self) -> int:
        """Drafts that the round before rejected."""
        return 0 if self.last is None else len(self.last.drafts) - self.last.accepted

    @property
    def fully_accepted(self) -> bool:
        """Whether the round before accepted all of its drafts, and had some."""
        return self.last is not None and len(self.last.drafts) == self.last.accepted > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Circumstance:
    """A condition on a moment.

    length: for BEYOND_LENGTH, tokens before those that are fed
    one_in: for ONE_IN_N; which ones depends on place and token, so that a repetition is the same
    tokens: for TOKEN_ID
    prefill: whether ALWAYS is before the row has emitted anything, too
    """

    when: When = When.ALWAYS
    length: int = 0
    one_in: int = 1
    tokens: frozenset[int] = frozenset()
    prefill: bool = False

    def holds(self, moment: Moment) -> bool:
        """Whether the fault acts on this row now."""
        if not moment.decoding:
            return self.prefill and self.when is When.ALWAYS
        place = f"{moment.start}:{moment.token}".encode()
        return {
            When.ALWAYS: True,
            When.AFTER_REJECTION: moment.rejected > 0,
            When.AFTER_ACCEPTANCE: moment.fully_accepted,
            When.NEIGHBOUR_ENDED: moment.ended,
            When.UNEQUAL_K: moment.unequal,
            When.BEYOND_LENGTH: moment.start >= self.length,
            When.PREFIX_REUSE: moment.copied,
            When.ONE_IN_N: zlib.crc32(place) % self.one_in == 0,
            When.TOKEN_ID: moment.token in self.tokens,
        }[self.when]
