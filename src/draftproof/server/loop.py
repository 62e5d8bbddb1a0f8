"""The engine in a thread of its own: requests come in and tokens go out while it runs."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from draftproof.batch import Request, Row
from draftproof.engine.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.types import TopLogprobs

log = logging.getLogger("draftproof.server")


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What one round gave one request.

    token_ids:  new ones, in order; every token of a request is in one update, once
    logprobs:   of these tokens, where the request asked for them; still on the device
    row:        with the last update of a request that finished
    error:      with the last update of a request that failed
    """

    index: int
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TopLogprobs] = ()
    row: Row | None = None
    error: Exception | None = None

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.row is not None or self.error is not None


class EngineStoppedError(DraftproofError, RuntimeError):
    """The engine's thread ended by an error of its own; the server has to be started again."""


Listener = Callable[[list[Update]], None]


@dataclass(slots=True)
class _Sent:
    """How much of a row its client knows."""

    row: Row
    tokens: int = 0
    logprobs: int = 0


@dataclass(kw_only=True)
class EngineLoop:
    """Runs rounds as long as there are requests, and sleeps while there are none.

    listener:  called in the engine's thread, once per round, with what the round gave; it must
               return at once and must not raise

    A round that raises is repeated with one row at a time, so that the request at fault is the only
    one that fails.
    """

    engine: Engine
    listener: Listener
    _orders: queue.SimpleQueue[Callable[[], None]] = field(
        default_factory=queue.SimpleQueue, init=False
    )
    _sent: dict[int, _Sent] = field(default_factory=dict, init=False)
    _failed: list[Update] = field(default_factory=list, init=False)
    _stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)

    # -- from any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive()

    @property
    def num_running(self) -> int:
        """Requests that have a row."""
        return len(self.engine.batch)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a row."""
        return len(self.engine.scheduler.waiting) + self._orders.qsize()

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests; their indices must be new."""
        self._orders.put(lambda: self._add(list(requests)))

    def abort(self, indices: Iterable[int]) -> None:
        """Take requests back before the next round; ended ones are left alone."""
        self._orders.put(lambda: self._drop(list(indices)))

    def stop(self, timeout: float | None = None) -> None:
        """End after the running round, whatever is unfinished."""
        self._orders.put(self._end)
        self._thread.join(timeout)

    # -- in the engine's thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if self._busy and not self._stopping:
                    self._round()
        except BaseException as error:
            log.critical("the engine stopped: %r", error, exc_info=error)
            self._fail_everyone(error)

    def _fail_everyone(self, error: BaseException) -> None:
        while not self._orders.empty():  # who was not yet queued must be told as well
            self._orders.get_nowait()()
        waiting = [request.index for request in self.engine.scheduler.waiting]
        cause = EngineStoppedError(f"the engine stopped: {error!r}")
        updates = [Update(index=index, error=cause) for index in [*self._sent, *waiting]]
        self.listener([*self._failed, *updates])

    @property
    def _busy(self) -> bool:
        return bool(self.engine.scheduler.waiting or self.engine.batch.rows)

    def _obey(self) -> None:
        """Do what was asked since the last round; with nothing to decode, wait for an order."""
        if not self._busy:
            self._orders.get()()
        while not self._stopping:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            order()

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.engine.add(request)

    def _drop(self, indices: Sequence[int]) -> None:
        for index in indices:
            self.engine.abort(index)
            self._sent.pop(index, None)

    def _end(self) -> None:
        self._stopping = True
        for row in list(self.engine.batch):
            self.engine.abort(row.request.index)

    def _round(self) -> None:
        self.engine.scheduler.admit(self.engine.batch)
        self._track()
        try:
            self.engine.step()
        except Exception as error:
            log.warning("a round failed, its rows run one by one: %r", error)
            self._one_by_one()
        if updates := self._updates():
            self.listener(updates)

    def _one_by_one(self) -> None:
        """The failed round again, each row alone: who fails again is at fault and ends."""
        self.engine.restore()
        rows = list(self.engine.batch)
        try:
            for row in rows:
                for other in rows:
                    other.paused = other is not row
                try:
                    self.engine.step()
                except Exception as error:
                    self.engine.restore()
                    self._fail(row, error)
        finally:
            for row in rows:
                row.paused = False

    def _fail(self, row: Row, error: Exception) -> None:
        index = row.request.index
        log.error("request %d failed: %r", index, error)
        self.engine.abort(index)
        self._sent.pop(index, None)
        self._failed.append(Update(index=index, error=error))

    def _track(self) -> None:
        """Know every admitted row: one may end in its first round, and a round may raise."""
        for row in self.engine.batch:
            self._sent.setdefault(row.request.index, _Sent(row))

    def _updates(self) -> list[Update]:
        """What the clients do not know yet, read off the rows themselves."""
        updates, self._failed = self._failed, []
        for index, sent in list(self._sent.items()):
            row = sent.row
            new = row.tokens[len(row.request.prompt) + sent.tokens :]
            final = row.finish_reason is not None
            if final:
                del self._sent[index]
            if new or final:
                pieces = row.outputs.logprobs[sent.logprobs :]
                sent.tokens += len(new)
                sent.logprobs += len(pieces)
                updates.append(
                    Update(
                        index=index,
                        token_ids=new,
                        logprobs=pieces,
                        row=row if final else None,
                    )
                )
        return updates
