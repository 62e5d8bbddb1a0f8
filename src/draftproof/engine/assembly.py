"""Puts the parts of one run together: which executor, drafter, verifier and scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.batch import Batch
from draftproof.drafters.base import Drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.engine.engine import Engine
from draftproof.engine.events import Observer
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.stopping import Decode
from draftproof.executors.memory import free_bytes, kv_bytes
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import Shapes
from draftproof.verifiers.greedy import GreedyVerifier

log = logging.getLogger("draftproof")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ngram:
    """Settings of the n-gram drafter, in vLLM's names."""

    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
    """Everything a run is made of.

    draft:  a second model, n-gram settings, a ready drafter, or None for plain decoding
    """

    target: BoundModel
    draft: BoundModel | Ngram | Drafter | None
    target_shapes: Shapes
    draft_shapes: Shapes
    max_num_seqs: int
    max_model_len: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    decode: Decode | None = None
    observers: Sequence[Observer] = ()
    debug: bool = False

    @property
    def draft_capacity(self) -> int:
        """Tokens per row in the draft's cache: never more than its context."""
        assert isinstance(self.draft, BoundModel)
        own = self.draft.max_positions
        return self.max_model_len if own is None else min(own, self.max_model_len)

    @property
    def kv_bytes(self) -> dict[str, int]:
        """Size of the caches in bytes, known before anything is allocated."""
        sizes = {
            "target": kv_bytes(
                self.target, self.max_num_seqs, self.target_shapes.view_of(self.max_model_len)
            )
        }
        if isinstance(self.draft, BoundModel) and self.num_speculative_tokens:
            sizes["draft"] = kv_bytes(
                self.draft, self.max_num_seqs, self.draft_shapes.view_of(self.draft_capacity)
            )
        return sizes


def assemble(plan: Blueprint) -> Engine:
    """Build the engine; the caches' size is logged before they are allocated.

    Raises OutOfMemoryError when they do not fit.
    """
    sizes = {name: f"{size / 2**20:,.2f} MiB" for name, size in plan.kv_bytes.items()}
    log.info(
        "KV cache: %d rows x %d tokens, %s",
        plan.max_num_seqs,
        plan.max_model_len,
        ", ".join(f"{name} {size}" for name, size in sizes.items()),
    )
    return Engine(
        target=_executor(plan.target, plan, plan.max_model_len, plan.target_shapes),
        drafter=_drafter(plan),
        verifier=GreedyVerifier(),
        scheduler=Scheduler(
            num_speculative_tokens=plan.num_speculative_tokens,
            max_num_batched_tokens=plan.max_num_batched_tokens,
        ),
        batch=Batch(plan.max_num_seqs),
        decode=plan.decode,
        observers=plan.observers,
        debug=plan.debug,
    )


def _executor(model: BoundModel, plan: Blueprint, capacity: int, shapes: Shapes) -> RowsExecutor:
    return RowsExecutor(
        model=model,
        rows=plan.max_num_seqs,
        capacity=capacity,
        shapes=shapes,
        free=free_bytes(model.device),
    )


def _drafter(plan: Blueprint) -> Drafter:
    draft = plan.draft
    if draft is None or plan.num_speculative_tokens == 0:
        return NoDrafter()
    if isinstance(draft, Ngram):
        return NgramDrafter(
            prompt_lookup_max=draft.prompt_lookup_max,
            prompt_lookup_min=draft.prompt_lookup_min,
            device=plan.target.device,
        )
    if isinstance(draft, BoundModel):
        executor = _executor(draft, plan, plan.draft_capacity, plan.draft_shapes)
        return ModelDrafter(executor=executor, max_num_batched_tokens=plan.max_num_batched_tokens)
    return draft
