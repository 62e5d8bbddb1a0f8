"""An engine whose models cost what a script says, on a clock that only they move.

Speed can then be tested without measuring time: the same run gives the same figure everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.batch import Batch, Request
from draftproof.drafters.model import ModelDrafter
from draftproof.engine.engine import Engine
from draftproof.engine.schedule import Schedule
from draftproof.engine.scheduler import Scheduler
from draftproof.executors.base import Executor
from draftproof.sampling import Settings
from draftproof.types import RaggedTokens
from draftproof.verifiers.sampling import SamplingVerifier

VOCABULARY = 64
Cost = Callable[[int], float]  # seconds of a forward by the number of tokens it is fed
Right = float | Callable[[int, int], float]  # of the draft, by request and position


@dataclass
class Clock:
    """Seconds that the scripted models have taken so far."""

    seconds: float = 0.0

    def now(self) -> float:
        """As `time.perf_counter`."""
        return self.seconds

    def spend(self, seconds: float) -> None:
        """A forward took so long."""
        self.seconds += seconds


@dataclass
class UneasyClock(Clock):
    """A machine that does not keep its time, as one that others work on.

    noise:   standard deviation of the logarithm of every forward's time
    hiccups: share of forwards that take twice their time
    swings:  seconds after which the machine turns half as fast, and back again; 0: never
    """

    noise: float = 0.0
    hiccups: float = 0.0
    swings: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def spend(self, seconds: float) -> None:
        factor = math.exp(self._random.gauss(0.0, self.noise))
        factor *= 2 if self._random.random() < self.hiccups else 1
        factor *= 2 if self.swings and self.seconds // self.swings % 2 else 1
        self.seconds += seconds * factor


@dataclass
class SlowAtFirst:
    """A cost whose first call with a new number of tokens takes three times as long.

    Large numbers share a kernel: up to 16 each has its own, then every fourth, then every 64th.
    """

    cost: Cost
    seen: set[int] = field(default_factory=set)

    def __call__(self, tokens: int) -> float:
        step = 1 if tokens <= 16 else 4 if tokens <= 64 else 64
        kernel = -(-tokens // step) * step
        new = kernel not in self.seen
        self.seen.add(kernel)
        return self.cost(tokens) * (3 if new else 1)


def written(position: int) -> int:
    """What the scripted target writes behind a position."""
    return (5 * position + 1) % VOCABULARY


@dataclass(kw_only=True)
class ScriptedExecutor:
    """A model that knows what comes next, or is wrong about it, and takes a scripted time.

    right:  probability that it agrees with the target, decided by request and position alone, so
            that it does not depend on how far ahead it is asked, nor in which row
    """

    clock: Clock
    cost: Cost
    rows: int
    right: Right = 1.0
    capacity: int = 4096
    vocab_size: int = VOCABULARY
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    lengths: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)  # what the rows' prompts begin with

    def __post_init__(self) -> None:
        self.lengths = [0] * self.rows
        self.requests = [0] * self.rows

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """One-hot scores; the clock moves."""
        self.clock.spend(self.cost(len(tokens.ids)))
        chosen: list[int] = []
        first = 0
        for row, start, count, keep in zip(
            tokens.rows, tokens.starts, tokens.counts, tokens.keep, strict=True
        ):
            assert self.lengths[row] == start
            if start == 0:
                self.requests[row] = int(tokens.ids[first])
            first += count
            self.lengths[row] += count
            chosen += [self._next(row, start + i) for i in range(count - keep, count)]
        index = torch.tensor(chosen, dtype=torch.int64)
        return torch.nn.functional.one_hot(index, VOCABULARY).float()

    def _next(self, row: int, position: int) -> int:
        request = self.requests[row]
        right = self.right if isinstance(self.right, float) else self.right(request, position)
        wrong = random.Random(request * 100_003 + position).random() >= right
        return (written(position) + wrong) % VOCABULARY

    def truncate(self, row: int, length: int) -> None:
        """As of every executor."""
        self.lengths[row] = length

    def release(self, row: int) -> None:
        """As of every executor."""
        self.lengths[row] = 0

    def check(self) -> None:
        """There is no memory that could be wrong."""

    def poison(self) -> None:
        """There is no memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Two scripted models and the work they are given.

    target, draft:  cost of their forwards
    right:          see ScriptedExecutor, of the draft; requests are told apart up to VOCABULARY
    prompt:         tokens of every request's prompt, or of one request after the other
    """

    target: Cost
    draft: Cost
    right: Right
    batch_size: int
    requests: int
    prompt: int | Sequence[int] = 32
    max_new_tokens: int = 128

    def run(self, schedule: Schedule, most: int, clock: Clock) -> Iterator[list[int]]:
        """Decode everything; the drafts of every row, round by round."""
        engine = self.engine(schedule, most, clock)
        for index in range(self.requests):
            engine.add(self._request(index))
        drafts: dict[int, int] = {}
        for commits in engine.run():
            rows = [commit.row for commit in commits]
            before = [drafts.get(row.request.index, 0) for row in rows]
            drafts |= {row.request.index: row.stats.num_draft_tokens for row in rows}
            yield [drafts[row.request.index] - n for row, n in zip(rows, before, strict=True)]
            for row in rows:
                end = len(row.request.prompt) - 1
                assert row.emitted == [written(end + i) for i in range(row.generated)]

    def _request(self, index: int) -> Request:
        lengths = [self.prompt] if isinstance(self.prompt, int) else self.prompt
        prompt = [index % VOCABULARY] * lengths[index % len(lengths)]
        settings = Settings(max_new_tokens=self.max_new_tokens)
        return Request(index=index, prompt=prompt, settings=settings)

    def engine(self, schedule: Schedule, most: int, clock: Clock) -> Engine:
        """Ready to be given requests."""
        rows = self.batch_size
        target: Executor = ScriptedExecutor(clock=clock, cost=self.target, rows=rows)
        executor = ScriptedExecutor(clock=clock, cost=self.draft, rows=rows, right=self.right)
        drafter = ModelDrafter(executor=executor, max_num_batched_tokens=512, vocab_size=VOCABULARY)
        drafter.timer = schedule.start(target.device, drafter)
        return Engine(
            target=target,
            drafter=drafter,
            verifier=SamplingVerifier(),
            scheduler=Scheduler(
                num_speculative_tokens=most, max_num_batched_tokens=512, schedule=schedule
            ),
            batch=Batch(rows),
            timer=drafter.timer,
        )

    def speed(self, schedule: Schedule, most: int, clock: Clock) -> float:
        """Tokens per second on the scripted clock."""
        started = clock.seconds
        for _ in self.run(schedule, most, clock):
            pass
        return self.requests * self.max_new_tokens / (clock.seconds - started)
