"""Arithmetic that depends on the shape of a batch, strong enough to be seen on tiny models.

Kernels of real sizes add up in another order for another number of rows or tokens, and so their
results differ by rounding. Tiny models are computed alike in every shape, and so never show what
the forensics must not take for a bug. Here a step of the number format, up or down at random, is
added to every logit; the random numbers depend on all that is fed at once. It is no fault: a run
with it is correct, and its forks are near ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.engine.engine import Engine
from draftproof.faultlab.faulty_engine import Rig
from draftproof.forensics.noise import MANTISSA
from draftproof.forensics.subjects.base import Inquiry


@dataclass
class RoundingModel:
    """A bound model whose logits are rounded in another way for every batch.

    steps: of the model's number format, at the size of the largest logit
    """

    inner: Any
    steps: float = 1.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, ids: Tensor, positions: Tensor, *more: Any) -> Tensor:
        """As BoundModel.forward: logits [len(keep), V]."""
        logits: Tensor = self.inner.forward(ids, positions, *more)
        if not len(logits):
            return logits
        fed = (*ids.flatten().tolist(), *positions.flatten().tolist())
        generator = torch.Generator().manual_seed(hash(fed) % 2**63)
        up = torch.randint(-1, 2, logits.shape, generator=generator).to(logits.device)
        name = str(self.inner.model.dtype).removeprefix("torch.")
        size = logits.float().abs().amax(-1, keepdim=True)  # [len(keep), 1]
        step = 2.0 ** (size.log2().floor() - MANTISSA[name])
        return logits + (self.steps * step * up).to(logits.dtype)


def rounding(then: Rig | None = None) -> Rig:
    """Engines whose target rounds in its own way, with a fault on top."""

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        target: Any = engine.target
        target.model = RoundingModel(target.model)
        return engine if then is None else then(engine, inquiry)

    return rig
