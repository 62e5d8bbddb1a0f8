"""Times the phases of a round as they follow one another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.phases import Phase

# Where the clock must wait for the device, the first rounds are timed and then one of so many:
# waiting keeps the host from preparing the next forward while this one runs.
SAMPLED = 16


@dataclass(kw_only=True)
class PhaseTimer:
    """A `RoundTimer`: a phase lasts until the next begins, so that what a step does beside its
    forward (choosing a token, writing it down) is counted with it.

    record:  told of every phase: name, size, seconds
    wait:    called before the clock is read, where kernels run behind the host's back
    """

    record: Callable[[Phase, int, float], None]
    now: Callable[[], float] = time.perf_counter
    wait: Callable[[], None] = lambda: None
    every: int = 1  # one round of so many is timed once the first are
    _rounds: int = field(default=0, init=False)
    _phase: tuple[Phase, int] | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    @classmethod
    def on(
        cls, device: torch.device, record: Callable[[Phase, int, float], None], **options: Any
    ) -> PhaseTimer:
        """A timer whose clock is right on a device."""
        if device.type == "cuda":
            options |= {"wait": lambda: torch.cuda.synchronize(device), "every": SAMPLED}
        return cls(record=record, **options)

    def enter(self, phase: Phase, size: int) -> None:
        """See `RoundTimer`. What a round left open is forgotten: no token came of it."""
        if phase is Phase.HOST:
            self._phase = None
            self._rounds += 1
            if self._rounds > 4 * SAMPLED and self._rounds % self.every:
                return
        elif self._phase is None:
            return
        now = self._tick()
        self._phase, self._since = (phase, size), now

    def finish(self) -> None:
        """See `RoundTimer`."""
        if self._phase is not None:
            self._tick()
            self._phase = None

    def _tick(self) -> float:
        self.wait()
        now = self.now()
        if self._phase is not None:
            self.record(*self._phase, now - self._since)
        return now
