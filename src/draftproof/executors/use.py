"""What a pair holds of its models, and how it gives them back."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch import nn

from draftproof.errors import InputError
from draftproof.executors.choice import refresh
from draftproof.hf import BoundModel, Change, Watch

S = TypeVar("S")
T = TypeVar("T")


class ModelUse:
    """The models of one pair: up to date before a run, used by one round at a time, given back.

    A model is given back by the `close` of the last of its pairs, or when nothing that could decode
    with it is left: no pair, engine or stream.

    parts:    its models, ready for their executors
    sources:  models that another runtime made its own copy of: changes to them are refused
    """

    def __init__(self, parts: Sequence[Any], sources: Sequence[Any]) -> None:
        self.closed = False
        self._parts = [part for part in parts if isinstance(part, BoundModel)]
        self._watches = [Watch(source) for source in sources if isinstance(source, nn.Module)]
        self._lock = threading.RLock()
        for part in self._parts:
            part.users += 1
        self._finalizer = weakref.finalize(self, _leave, self._parts)
        self._finalizer.atexit = False  # a process that ends gives nothing back

    def close(self) -> None:
        """Give the models back; calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        with self._lock:
            self._finalizer()
            for part in self._parts:
                if part.users == 0 and not part.kept:
                    part.release()

    def update(self, *, force: bool = False) -> Change:
        """Before a run: take over what changed in the models; what changed at most.

        force: whether anything seems to have changed or not
        Raises InputError after `close`, or for a change that cannot be taken over.
        """
        self._refuse_closed()
        with self._lock:
            if any(watch.restructured or watch.rewritten for watch in self._watches):
                raise InputError(
                    "the model was changed after OpenVINO converted it: make a new Pair of it"
                )
            return max([refresh(part, force=force) for part in self._parts], default=Change.NONE)

    def rounds(self, rounds: Iterator[T]) -> Iterator[T]:
        """The same rounds, each run while no other thread runs one of this pair."""
        try:
            while True:
                with self._lock:
                    self._refuse_closed()
                    try:
                        commits = next(rounds)
                    except StopIteration:
                        return
                yield commits
        finally:
            with self._lock:
                getattr(rounds, "close", lambda: None)()

    def alone(self, work: Callable[[], T]) -> T:
        """Run what may not run beside a round, such as encoding with the same tokenizer."""
        with self._lock:
            return work()

    def beside(self, work: Callable[[S], T]) -> Callable[[S], T]:
        """The same function, run while no thread runs a round of this pair."""
        return lambda given: self.alone(lambda: work(given))

    def _refuse_closed(self) -> None:
        if self.closed:
            raise InputError("this Pair was closed: make a new one")


def _leave(parts: Sequence[BoundModel]) -> None:
    for part in parts:
        part.users -= 1
