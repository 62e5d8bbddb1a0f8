"""The methods of the paper: which memory, scheduler and verifier a run is made of.

A method is only that; drafters, verification, stopping and results are the same for all, so that
what is compared is the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from draftproof.engine.grouping import (
    FirstFull,
    GroupedScheduler,
    Largest,
    Oldest,
    PhasedScheduler,
    Policy,
)
from draftproof.engine.schedule import CONSTANT, Schedule
from draftproof.engine.scheduler import Scheduler
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.executors.base import Executor
from draftproof.executors.grouped import GroupedExecutor
from draftproof.executors.padded import PaddedExecutor
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import Shapes
from draftproof.verifiers.base import Verifier
from draftproof.verifiers.shortest import ShortestVerifier


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What an executor is made of; see `CachedRows`. `drafted` is the most a row drafts."""

    model: BoundModel
    rows: int
    capacity: int
    shapes: Shapes
    free: int | None
    drafted: int = 0
    debug: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that every executor takes."""
        common = ("model", "rows", "capacity", "shapes", "free")
        return {name: getattr(self, name) for name in common}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What every scheduler is made of; see `Scheduler`."""

    num_speculative_tokens: int
    max_num_batched_tokens: int
    schedule: Schedule = CONSTANT
    max_kv_tokens: int | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to decode a batch; this one is the row-anchored layout, which moves nothing ever."""

    name: ClassVar[str] = "rows"
    anchored: ClassVar[bool] = True  # a token's slot never changes: what exact numerics need
    discards: ClassVar[bool] = False  # throws away tokens that were already chosen

    def pool(self, max_num_seqs: int) -> int:
        """Rows that the caches hold when `max_num_seqs` of them run at a time."""
        return max_num_seqs

    def slots(self, capacity: int, drafted: int) -> int:
        """Cache slots per row for `capacity` tokens."""
        return capacity

    def executor(self, memory: Memory) -> Executor:
        """A model and its memory."""
        return RowsExecutor(**memory.arguments)

    def scheduler(self, limits: Limits, max_num_seqs: int) -> Scheduler:
        """Which rows run in a round."""
        return Scheduler(**limits.arguments)

    def verifier(self, inner: Verifier) -> Verifier:
        """What becomes of the verifier's judgement."""
        return inner


@dataclass(frozen=True, kw_only=True)
class EqSpec(Method):
    """A left-padded rectangle, realigned after every round."""

    name = "eqspec"
    anchored = False

    def slots(self, capacity: int, drafted: int) -> int:
        return capacity + drafted

    def executor(self, memory: Memory) -> Executor:
        return PaddedExecutor(**memory.arguments, spare=memory.drafted, debug=memory.debug)

    def scheduler(self, limits: Limits, max_num_seqs: int) -> Scheduler:
        return PhasedScheduler(**limits.arguments)


@dataclass(frozen=True, kw_only=True)
class Rollback(EqSpec):
    """Every row goes back to the shortest acceptance of the batch: correct and slow."""

    name = "rollback"
    discards = True

    def verifier(self, inner: Verifier) -> Verifier:
        return ShortestVerifier(inner=inner)


@dataclass(frozen=True, kw_only=True)
class ExSpec(EqSpec):
    """A pool of rows, of which equal ones run together, so that nothing is realigned.

    window_size:     rows in the pool; None: four batches of them
    sort_by_length:  admit short prompts first; results keep their order
    policy:          first_full (the paper's), largest, oldest
    waiting_limit:   rounds after which `oldest` runs a row without equal partners

    Raises InputError for values out of range.
    """

    name = "exspec"
    window_size: int | None = None
    sort_by_length: bool = False
    policy: str = "first_full"
    waiting_limit: int = 8

    def __post_init__(self) -> None:
        for name in ("window_size", "waiting_limit"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"{name} must be a whole number, 1 or more, got {value!r}")
        if self.policy not in self._policies():
            names = ", ".join(self._policies())
            raise InputError(f"policy={self.policy!r}; choose one of {names}")

    def _policies(self) -> dict[str, Policy]:
        return {
            "first_full": FirstFull(),
            "largest": Largest(),
            "oldest": Oldest(waiting_limit=self.waiting_limit),
        }

    def pool(self, max_num_seqs: int) -> int:
        return max(max_num_seqs, self.window_size or 4 * max_num_seqs)

    def executor(self, memory: Memory) -> Executor:
        return GroupedExecutor(**memory.arguments, spare=memory.drafted, debug=memory.debug)

    def scheduler(self, limits: Limits, max_num_seqs: int) -> Scheduler:
        return GroupedScheduler(
            **limits.arguments,
            group_size=max_num_seqs,
            policy=self._policies()[self.policy],
            sort_by_length=self.sort_by_length,
        )


METHODS: Mapping[str, type[Method]] = {
    method.name: method for method in (Method, EqSpec, ExSpec, Rollback)
}


def method_named(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method of that name with its own options.

    Raises UnsupportedArgumentError for a name or an option that does not exist.
    """
    if name not in METHODS:
        raise UnsupportedArgumentError(f"method={name!r}; choose one of {', '.join(METHODS)}")
    kind = METHODS[name]
    known = [*getattr(kind, "__dataclass_fields__", {})]
    for option in options or {}:
        if option not in known:
            raise UnsupportedArgumentError(
                f"method {name!r} has no option {option!r}; it has {', '.join(known) or 'none'}"
            )
    return kind(**(options or {}))
