"""Clocks around the parts of a round; the algorithm's own code knows nothing of them."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from draftproof.engine.engine import Engine

DRAFT, VERIFY, REALIGN, REST = "draft", "verify", "realign", "rest"
PARTS = (DRAFT, VERIFY, REALIGN, REST)


def synchronised(device: torch.device) -> Callable[[], float]:
    """A clock that waits until the device has done what it was asked to."""
    if device.type != "cuda":
        return time.perf_counter

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


class Stopwatch:
    """Seconds per name; an inner span's time is not counted for the spans around it."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._now = now
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Everything that happens within belongs to `name`, but what an inner span takes."""
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class TimedExecutor:
    """An executor whose forwards, and whose realignment before them, are timed.

    An executor that realigns does so in `realign`, which a forward calls by itself and which finds
    nothing to do the second time; so it is called here first, under its own span. What rolling
    back costs is counted as realignment for every method: in the row-anchored layout it is all
    that is left of it.
    """

    def __init__(self, inner: Any, watch: Stopwatch, name: str) -> None:
        self._inner, self._watch, self._name = inner, watch, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, tokens: Any) -> Any:
        """As the executor's, timed."""
        if hasattr(self._inner, "realign"):
            with self._watch.span(REALIGN):
                self._inner.realign(tokens)
        with self._watch.span(self._name):
            return self._inner.forward(tokens)

    def truncate(self, row: int, length: int) -> None:
        """As the executor's, timed."""
        with self._watch.span(REALIGN):
            self._inner.truncate(row, length)


class TimedDrafter:
    """A drafter whose proposals are timed."""

    def __init__(self, inner: Any, watch: Stopwatch, name: str) -> None:
        self._inner, self._watch, self._name = inner, watch, name
        if hasattr(inner, "executor"):
            inner.executor = TimedExecutor(inner.executor, watch, DRAFT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, rows: Any, wanted: Any) -> Any:
        """As the drafter's, timed."""
        with self._watch.span(self._name):
            return self._inner.propose(rows, wanted)


def put_clocks_around(engine: Engine, watch: Stopwatch, *, proposing: str = DRAFT) -> None:
    """Time an engine's drafter and target; what else a round does is its caller's span.

    proposing: what belongs to a proposal beside the draft's forwards is counted under this name
    """
    wrapped: Any = TimedExecutor(engine.target, watch, VERIFY)
    engine.target = wrapped
    drafter: Any = TimedDrafter(engine.drafter, watch, proposing)
    engine.drafter = drafter
