"""Faults of sampled verification, where the installation samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.engine import Engine
from draftproof.faultlab.faults.base import Condition, Fault
from draftproof.forensics.subjects.base import Inquiry
from draftproof.forensics.verdicts import Kind
from draftproof.types import Verdict
from draftproof.verifiers.base import Verifier


@dataclass(frozen=True, kw_only=True)
class FlatDraft:
    """Acceptance min(1, p / q) with q as if the draft had been sampled at temperature 1.

    q at temperature T is proportional to q1 ** (1 / T), so q ** T gives the untempered q1 back.
    """

    inner: Verifier
    temperature: float

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Any) -> Verdict:
        """logits: [sum(K + 1), V]."""
        q = drafts.probabilities  # [R, K_max, V]
        if q is not None:
            flat = q**self.temperature
            drafts = replace(drafts, probabilities=flat / flat.sum(-1, keepdim=True))
        return self.inner.judge(logits, rows, drafts)


def draft_temperature_ignored(engine: Engine, inquiry: Inquiry) -> Engine:
    """See FlatDraft."""
    engine.verifier = FlatDraft(inner=engine.verifier, temperature=inquiry.temperature or 1.0)
    return engine


def sampled() -> tuple[Fault, ...]:
    """Where the verifier knows rejection sampling."""
    if find_spec("draftproof.verifiers.rejection") is None:
        return ()
    return (
        Fault(
            name="draft_temperature_ignored",
            kind=Kind.SAMPLING,
            story="the acceptance rule takes the draft's probabilities before its temperature",
            condition=Condition.SAMPLING,
            rig=draft_temperature_ignored,
        ),
    )
