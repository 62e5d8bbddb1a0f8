"""Between asyncio and the engine's thread: one stream of updates per request."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from draftproof.batch import Request
from draftproof.engine.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.server.loop import EngineLoop, Update


class QueueFullError(DraftproofError, RuntimeError):
    """More requests wait than the server is told to hold: try again later."""


class DrainingError(DraftproofError, RuntimeError):
    """The server is going down and takes no new requests."""


@dataclass(kw_only=True)
class Service:
    """Gives each call of `updates` the tokens of its own requests, as rounds end.

    max_waiting:  requests that may wait for a row; more raise QueueFullError
    """

    engine: Engine
    max_waiting: int
    draining: bool = field(default=False, init=False)
    _queues: dict[int, asyncio.Queue[Update]] = field(default_factory=dict, init=False)
    _indices: itertools.count[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        self.loop = EngineLoop(engine=self.engine, listener=self._hand_over)

    def start(self) -> None:
        """Start the engine; called within the event loop that the updates go to."""
        self._asyncio = asyncio.get_running_loop()
        self.loop.start()

    async def drain(self, seconds: float) -> None:
        """Take no new requests, give the running ones time to end, then stop the engine."""
        self.draining = True
        deadline = self._asyncio.time() + seconds
        while self._queues and self._asyncio.time() < deadline:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(self.loop.stop)

    @property
    def num_open(self) -> int:
        """Requests that were taken and have not ended."""
        return len(self._queues)

    def _hand_over(self, updates: list[Update]) -> None:
        """In the engine's thread: one hand-over per round, whatever the number of requests."""
        self._asyncio.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            if (target := self._queues.get(update.index)) is not None:
                target.put_nowait(update)

    async def updates(
        self, requests: Sequence[Request]
    ) -> AsyncGenerator[tuple[int, Update], None]:
        """(place among `requests`, update) until all have ended; leaving early frees the rows.

        Raises QueueFullError or DrainingError before anything is queued, and what a request failed
        with.
        """
        self._refuse(len(requests))
        numbered = [replace(request, index=next(self._indices)) for request in requests]
        place = {request.index: number for number, request in enumerate(numbered)}
        inbox: asyncio.Queue[Update] = asyncio.Queue()
        self._queues.update(dict.fromkeys(place, inbox))
        self.loop.submit(numbered)
        unfinished = set(place)
        try:
            while unfinished:
                update = await inbox.get()
                if update.error is not None:
                    unfinished.discard(update.index)
                    raise update.error
                if update.final:
                    unfinished.discard(update.index)
                    self._queues.pop(update.index, None)
                yield place[update.index], update
        finally:
            for index in place:
                self._queues.pop(index, None)
            if unfinished:
                self.loop.abort(unfinished)

    def _refuse(self, count: int) -> None:
        if self.draining:
            raise DrainingError("the server is shutting down")
        if not self.loop.alive:
            raise DrainingError("the engine is not running")
        waiting = self.num_open - self.loop.num_running
        if waiting + count > self.max_waiting + self.engine.batch.max_num_seqs:
            raise QueueFullError(
                f"{waiting} requests are waiting, the most that this server holds; try again later"
            )
