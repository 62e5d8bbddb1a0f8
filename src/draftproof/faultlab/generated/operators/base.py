"""What an operator is: a way to go wrong, where it can act, and which verdicts are right for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from draftproof.faultlab.generated.circumstances import When
from draftproof.faultlab.generated.seam import Injection

UNKNOWN = "unknown"  # a bug that the forensics do not claim to know
ANY_TIME = tuple(When)
IN_ROWS = (When.ALWAYS, When.NEIGHBOUR_ENDED, When.UNEQUAL_K, When.BEYOND_LENGTH, When.ONE_IN_N)
IN_BLOCKS = (When.ALWAYS, When.AFTER_REJECTION, When.AFTER_ACCEPTANCE, When.ONE_IN_N, When.TOKEN_ID)
ALWAYS = (When.ALWAYS,)


class Need(StrEnum):
    """What a case must have for an operator to be drawn for it."""

    BATCH = "several rows at a time"
    EOS = "rows that end by eos"
    WINDOW = "layers with a sliding window"


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What was drawn before an operator is made: it chooses the rest from `rng`.

    outputs: of the reference, so that rare events do happen
    """

    rng: random.Random
    vocab_size: int
    k: int
    batch: int
    outputs: Sequence[Sequence[int]]
    eos_token_id: tuple[int, ...] = ()

    def token(self) -> int:
        """A token that some row emits before its last."""
        return self.rng.choice([token for row in self.outputs for token in row[:-1]])


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One way to go wrong.

    family: the part of a decoder that it belongs to
    right:  kinds, or causes that are no bugs of speculation, that name it
    useful: kinds that say less than could be said, and nothing wrong
    whens:  circumstances that make sense for it
    prefill: whether it acts on prompts, too, where it always acts
    """

    name: str
    family: str
    story: str
    right: frozenset[str]
    make: Callable[[Draw], Injection]
    useful: frozenset[str] = frozenset({UNKNOWN})
    whens: tuple[When, ...] = ANY_TIME
    needs: frozenset[Need] = frozenset()
    prefill: bool = False


def named(*kinds: str) -> frozenset[str]:
    """A set of kinds and causes."""
    return frozenset(kinds)
