"""Times the parts of a round as they follow one another; the loop knows nothing of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from draftproof.types import RaggedTokens

SAMPLED = (
    16  # where the clock must wait for the device, one round of so many is timed, and the first few
)


class Part(StrEnum):
    """What is timed; the size of a part in brackets."""

    HOST = "host"  # from the choice of K to the first forward: look-ups (1 + drafts wanted)
    DRAFT = "draft"  # one draft step (tokens fed to the draft)
    VERIFY = "verify"  # the target's forward, and the judgement (tokens fed to the target)


Record = Callable[[Part, int, float], None]


@dataclass(kw_only=True)
class Stages:
    """A part begins where the one before it ends, so that what a step does beside its forward
    (choosing a token, writing it down) is counted with it.

        choose -> host -> draft -> draft -> ... -> verify -> the round's read by the host

    record:  told of every part: name, size, seconds
    wait:    called before the clock is read, where kernels run behind the host's back; there the
             first rounds are timed and then one in SAMPLED
    """

    record: Record
    now: Callable[[], float] = time.perf_counter
    wait: Callable[[], None] | None = None
    _rounds: int = field(default=0, init=False)
    _part: tuple[Part, int] | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    @classmethod
    def on(cls, device: torch.device, record: Record, now: Callable[[], float]) -> Stages:
        """Stages whose clock is right on a device."""
        if device.type != "cuda":
            return cls(record=record, now=now)
        return cls(record=record, now=now, wait=lambda: torch.cuda.synchronize(device))

    def start(self, size: int) -> None:
        """A round begins. What was left open (no token came of it) is forgotten."""
        self._part = None
        self._rounds += 1
        if self.wait is None or self._rounds <= 4 * SAMPLED or self._rounds % SAMPLED == 0:
            self._open(Part.HOST, size)

    def enter(self, part: Part, size: int) -> None:
        """The next part of a timed round begins."""
        if self._part is not None:
            self._close()
            self._open(part, size)

    def finish(self) -> None:
        """The round's tokens are on the host."""
        if self._part is not None:
            self._close()
            self._part = None

    def _open(self, part: Part, size: int) -> None:
        if self.wait is not None:
            self.wait()
        self._part, self._since = (part, size), self.now()

    def _close(self) -> None:
        if self.wait is not None:
            self.wait()
        assert self._part is not None
        self.record(*self._part, self.now() - self._since)


class TimedExecutor:
    """An executor that says when it is called; otherwise as it was."""

    def __init__(self, inner: Any, stages: Stages, part: Part) -> None:
        self.inner, self._stages, self._part = inner, stages, part

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy in the making has none yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """As the executor's."""
        self._stages.enter(self._part, len(tokens.ids))
        logits: Tensor = self.inner.forward(tokens)
        return logits

    def truncate(self, row: int, length: int) -> None:
        """As the executor's; the target's first one of a round follows the host's read."""
        if self._part is Part.VERIFY:
            self._stages.finish()
        self.inner.truncate(row, length)

    def release(self, row: int) -> None:
        """As the executor's."""
        if self._part is Part.VERIFY:
            self._stages.finish()
        self.inner.release(row)
