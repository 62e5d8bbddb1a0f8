"""Our engine as a subject, with something done to its parts or to its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from draftproof.engine.engine import Engine
from draftproof.forensics.subjects.base import Answer, Inquiry, Run, Setup
from draftproof.forensics.subjects.engine import EngineSubject

Rig = Callable[[Engine, Inquiry], Engine]  # changes an assembled engine before it runs
Delivery = Callable[[Sequence[Answer], int], Sequence[Answer]]  # answers, rows at a time


@dataclass(kw_only=True)
class FaultyEngine(EngineSubject):
    """An engine subject; without `rig` and `deliver` a correct one.

    rig:     changes the engine, after known drafts are put in and before it is watched
    deliver: what happens to the answers on their way out
    """

    rig: Rig | None = None
    deliver: Delivery | None = None

    def _scripted(self, engine: Engine, inquiry: Inquiry, setup: Setup) -> Engine:
        engine = super()._scripted(engine, inquiry, setup)
        return engine if self.rig is None else self.rig(engine, inquiry)

    def _run(self, inquiry: Inquiry, setup: Setup) -> Run:
        run = super()._run(inquiry, setup)
        if self.deliver is None:
            return run
        rows = self.batch if setup.batch is None else setup.batch
        return replace(run, answers=tuple(self.deliver(run.answers, rows)))
