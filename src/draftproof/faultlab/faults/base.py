"""What an injected fault is: a name, the kind it must be recognised as, and how it is put in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from draftproof.engine.engine import Engine
from draftproof.faultlab.faulty_engine import Delivery, Rig
from draftproof.forensics.verdicts import Kind

AnyEngine = TypeVar("AnyEngine", bound=Engine)


class Condition(StrEnum):
    """What must be in the requests or the model for a fault to bite at all."""

    PLAIN = "plain"  # unlike prompts of unlike lengths
    EOS = "eos"  # rows that end in the middle of a block
    STOP = "stop"  # stop strings
    MARKED = "marked"  # prompts that contain the eos id
    MINIMUM = "minimum"  # min_new_tokens beyond an eos
    WINDOW = "window"  # a model with sliding-window layers
    TIES = "ties"  # a model in which pairs of tokens always tie
    SAMPLING = "sampling"  # many draws of one prompt, on a tiny vocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One mistake, as people make it.

    story:    what was done wrong, one sentence
    rig:      changes an assembled engine
    deliver:  changes the answers on their way out
    method:   takes the place of the engine's own method (`Pair(method=...)`)
    """

    name: str
    kind: Kind
    story: str
    condition: Condition = Condition.PLAIN
    rig: Rig | None = None
    deliver: Delivery | None = None
    method: Any = None


def rebuilt(engine: Engine, cls: type[AnyEngine]) -> AnyEngine:
    """The same parts in another class of engine."""
    return cls(**{f.name: getattr(engine, f.name) for f in fields(engine) if f.init})
