"""What is compared: anything that turns prompts into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from draftproof.engine.events import RowRound

TOP = 4  # alternatives kept per token; the gap at a fork needs the first two, a three-way tie more


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One prompt, as token ids where the subject takes them, and as text for those that do not."""

    index: int
    prompt: tuple[int, ...] = ()
    text: str | None = None
    category: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inquiry:
    """What both sides are asked: the same prompts under the same rules of ending.

    eos_token_id: None leaves each subject to its model's own
    temperature:  None is greedy; else every task is one draw, seeded by its index
    """

    tasks: tuple[Task, ...]
    max_new_tokens: int = 64
    min_new_tokens: int = 0
    eos_token_id: tuple[int, ...] | None = None
    stop_strings: tuple[str, ...] = ()
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Top:
    """The likeliest next tokens at one place, best first; none: the scores are not shown here.

    values: logits, or logarithms of probabilities: differences mean the same in both
    logits: whether `values` are logits, so that a step of the dtype has a meaning
    """

    ids: tuple[int, ...]
    values: tuple[float, ...]
    logits: bool = True

    def gap(self, expected: int, found: int) -> tuple[float, bool]:
        """Distance of two tokens, and whether it is exact or (unlisted token) a lower bound.

        Needs at least one score.
        """
        known = dict(zip(self.ids, self.values, strict=True))
        lowest = min(self.values)
        a, b = known.get(expected, lowest), known.get(found, lowest)
        return abs(a - b), expected in known and found in known


NOT_SHOWN = Top(ids=(), values=(), logits=False)  # a place without evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a subject said to one prompt.

    tops:      per emitted token, where the subject shows them; NOT_SHOWN at single places
    rounds:    what each round did to the row, for subjects that can be watched
    error:     why there is no answer; `ids` then mean nothing
    """

    ids: tuple[int, ...] = ()
    tops: tuple[Top, ...] = ()
    rounds: tuple[RowRound, ...] = ()
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Is speculation on? None: the subject does not say."""

    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    source: str = "not reported"

    @property
    def speculating(self) -> bool | None:
        """Whether anything was drafted; None when unknown."""
        return None if self.drafted is None else self.drafted > 0

    @property
    def acceptance(self) -> float | None:
        """accepted / drafted."""
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One pass of a subject over all tasks, in the order of the tasks."""

    answers: tuple[Answer, ...]
    counters: Counters = field(default_factory=Counters)

    @property
    def ids(self) -> list[tuple[int, ...]]:
        """Token ids per task."""
        return [answer.ids for answer in self.answers]


class Ability(StrEnum):
    """What a subject can be asked to do differently in a control."""

    BATCH = "batch"  # another number of rows at a time
    K = "k"  # another number of draft tokens, 0 included
    SCRIPT = "script"  # drafts handed to it, so that their errors are known
    SERIAL = "serial"  # score a block as single steps
    FLOAT32 = "float32"
    TOPS = "tops"  # shows the likeliest tokens
    ROUNDS = "rounds"  # shows what every round did
    PROMPTS = "prompts"  # answers prompts that are made up on the way
    SCORES = "scores"  # scores tokens it is handed, all of a row at once: see `Scoring`


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Drafts handed to a subject: each row's known continuation, wrong at offset `right`.

    continuations: in the order of the tasks
    right:         correct draft tokens per block; K or more: all of them
    """

    continuations: tuple[tuple[int, ...], ...]
    right: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How one run departs from the subject's own settings; None leaves a setting as it is."""

    batch: int | None = None
    k: int | None = None
    script: Script | None = None
    serial: bool = False
    dtype: str | None = None


OWN = Setup()


class Subject(Protocol):
    """Anything that can be asked. `run` never raises for a single row: that row has an `error`."""

    @property
    def name(self) -> str:
        """The SPEC it was made from, without secrets."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """What `run` honours in a Setup; it refuses the rest."""

    @property
    def batch(self) -> int:
        """Rows at a time."""

    @property
    def k(self) -> int | None:
        """Draft tokens per round; 0 is plain, None unknown."""

    @property
    def model(self) -> Any | None:
        """The target as a transformers model, where it is in this process."""

    def settings(self) -> dict[str, Any]:
        """Everything a reader of the report wants to know of how it runs."""

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """Ask it."""


class Scoring(Protocol):
    """A subject with Ability.SCORES."""

    def scores(self, inquiry: Inquiry, run: Run, dtype: str | None = None) -> Run:
        """The likeliest tokens in front of each token of `run`, row by row, each row in one
        forward of its own: another shape, and neither a drafter nor a neighbour."""


def failed(tasks: Sequence[Task], error: str) -> Run:
    """A run in which no row was answered."""
    return Run(answers=tuple(Answer(error=error) for _ in tasks))
