"""What can be said of a difference: its cause and, where that is a bug, its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why two outputs differ, or that they do not."""

    EXACT = "exact"
    NUMERIC = "numeric"  # a near tie that another order of additions decides the other way
    HARNESS = "harness"  # the two sides were not asked the same, or are not set up alike
    BUG = "bug"
    UNDECIDED = "undecided"  # evidence is missing, and it is named


# of the whole run: the first of these that any row has
GRAVITY = (Cause.BUG, Cause.UNDECIDED, Cause.HARNESS, Cause.NUMERIC, Cause.EXACT)


class Kind(StrEnum):
    """What is broken, or set up differently, in the words of people who mend it."""

    POSITIONS = "positions"
    PADDING_MASK = "padding mask"
    STALE_KV = "stale KV"
    DRAFT_CACHE = "draft-cache drift"
    CORRECTION = "bonus/correction"
    UNVERIFIED = "unverified draft"
    ROW_MIXUP = "row mix-up"
    ENDING = "ending inside a block"
    SAMPLING = "sampling distribution"
    PROCESSORS = "processors"
    WINDOW = "cache window"
    NOT_SPECULATING = "speculation not running"
    TIES = "argmax ties"
    DELIVERY = "delivery order"
    VERIFYING = "verifying forward"
    UNKNOWN = "unknown"
    # no bugs of speculation: they show without it, and come with Cause.HARNESS
    OTHER_PROMPT = "other prompt"
    OTHER_DEFAULTS = "other defaults"
    SAMPLED = "sampled instead of greedy"
    OTHER_MODEL = "other weights or arithmetic"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause with the reasoning that led to it.

    rule:       the pattern that fits, in a few words
    reasons:    evidence, one sentence each
    missing:    evidence that would decide, or that would make the statement stronger
    candidates: kinds that no fact refutes, the best supported first, where it is not one alone
    """

    cause: Cause
    rule: str
    kind: Kind | None = None
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    candidates: tuple[Kind, ...] = ()

    def __str__(self) -> str:
        name = self.cause.value.upper()
        return name if self.kind is None else f"{name} ({self.kind.value})"
