"""Puts the parts of one run together: which executor, drafter, verifier and scheduler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftproof.batch import Batch
from draftproof.drafters.base import CachingDrafter, Drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.engine.engine import Engine
from draftproof.engine.events import Observer
from draftproof.engine.methods import Limits, Memory, Method
from draftproof.engine.schedule import CONSTANT, Schedule
from draftproof.engine.stopping import Decode
from draftproof.executors.base import Executor, ForeignModel
from draftproof.executors.memory import free_bytes, kv_bytes
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import Shapes
from draftproof.prefixes import Copying, Prefixes
from draftproof.verifiers.sampling import SamplingVerifier

log = logging.getLogger("draftproof")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ngram:
    """Settings of the n-gram drafter, in vLLM's names."""

    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
    """Everything a run is made of.

    draft:        a second model, n-gram settings, a ready drafter, or None for plain decoding
    max_requests: how many requests there will be, so that no pool is larger; None: not known
    shares_prefixes: whether prompts that begin alike are read once
    max_kv_tokens: see `Scheduler`
    schedule, confidence_threshold: how far rows draft, see `Schedule` and `ModelDrafter`
    """

    target: BoundModel | ForeignModel
    draft: BoundModel | ForeignModel | Ngram | Drafter | None
    target_shapes: Shapes
    draft_shapes: Shapes
    max_num_seqs: int
    max_model_len: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    schedule: Schedule = CONSTANT
    confidence_threshold: float = 0.0
    decode: Decode | None = None
    observers: Sequence[Observer] = ()
    debug: bool = False
    method: Method = field(default_factory=Method)
    max_requests: int | None = None
    shares_prefixes: bool = True
    max_kv_tokens: int | None = None

    @property
    def pool(self) -> int:
        """Rows that the caches hold."""
        rows = self.method.pool(self.max_num_seqs)
        most = rows if self.max_requests is None else self.max_requests
        return max(self.max_num_seqs, min(rows, most))

    @property
    def draft_capacity(self) -> int:
        """Tokens per row in the draft's cache: never more than its context, or what is proven."""
        assert isinstance(self.draft, BoundModel | ForeignModel)
        proven = self.draft.proven if isinstance(self.draft, BoundModel) else None
        limits = (self.draft.max_positions, proven and proven.proof.limit)
        return min(self.max_model_len, *(limit for limit in limits if limit is not None))

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Bytes that the PyTorch models take, packed copies of their weights included."""
        parts = {"target": self.target, "draft": self.draft}
        return {n: part.weight_bytes for n, part in parts.items() if isinstance(part, BoundModel)}

    @property
    def kv_bytes(self) -> dict[str, int]:
        """Size of the caches in bytes, known before anything is allocated."""
        sizes = {"target": self._bytes(self.target, self.max_model_len, self.target_shapes)}
        if isinstance(self.draft, BoundModel | ForeignModel) and self.num_speculative_tokens:
            sizes["draft"] = self._bytes(self.draft, self.draft_capacity, self.draft_shapes)
        return sizes

    def _bytes(self, model: BoundModel | ForeignModel, capacity: int, shapes: Shapes) -> int:
        if isinstance(model, ForeignModel):
            return model.kv_bytes(self.pool, capacity)
        slots = self.method.slots(capacity, self.num_speculative_tokens)
        return kv_bytes(model, self.pool, shapes.view_of(slots))

    def plain(self) -> Blueprint:
        """The same target without drafts, neighbours and copied prefixes: what audits run."""
        return replace(
            self,
            draft=None,
            max_num_seqs=1,
            max_requests=1,
            num_speculative_tokens=0,
            schedule=CONSTANT,
            observers=(),
            debug=False,
            method=Method(),
            shares_prefixes=False,
        )

    @property
    def limits(self) -> Limits:
        """What the scheduler keeps to."""
        return Limits(
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            schedule=self.schedule,
            max_kv_tokens=self.max_kv_tokens,
        )


def assemble(plan: Blueprint) -> Engine:
    """Build the engine; the caches' size is logged before they are allocated.

    Raises OutOfMemoryError when they do not fit, UnsupportedModelError where the target is not
    right for rows of this length.
    """
    if isinstance(plan.target, BoundModel) and plan.target.proven is not None:
        decoding = plan.pool * (plan.num_speculative_tokens + 1)
        together = max(plan.max_num_batched_tokens, decoding)
        plan.target.proven.require(length=plan.max_model_len, together=together)
    if plan.weight_bytes:  # other runtimes keep theirs to themselves
        log.info("weights: %s", _in_mib(plan.weight_bytes))
    log.info(
        "KV cache: %d rows x %d tokens, %s",
        plan.pool,
        plan.max_model_len,
        _in_mib(plan.kv_bytes),
    )
    target = _executor(plan.target, plan, plan.max_model_len, plan.target_shapes)
    drafter = _drafter(plan)
    timer = plan.schedule.start(target.device, drafter)
    if isinstance(drafter, CachingDrafter):
        drafter.timer = timer
    return Engine(
        target=target,
        drafter=drafter,
        verifier=plan.method.verifier(SamplingVerifier()),
        scheduler=plan.method.scheduler(plan.limits, plan.max_num_seqs),
        batch=Batch(plan.pool),
        decode=plan.decode,
        prefixes=_prefixes(target, plan),
        observers=plan.observers,
        debug=plan.debug,
        timer=timer,
    )


def _prefixes(executor: Executor, plan: Blueprint) -> Prefixes | None:
    """None where a memory cannot copy: the paper's layouts move rows about by themselves."""
    if plan.shares_prefixes and isinstance(executor, Copying):
        return Prefixes(memory=executor)
    return None


def _in_mib(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / 2**20:,.2f} MiB" for name, size in sizes.items())


def _executor(
    model: BoundModel | ForeignModel, plan: Blueprint, capacity: int, shapes: Shapes
) -> Executor:
    if isinstance(model, ForeignModel):
        return model.executor(plan.pool, capacity, free_bytes(model.device), shapes)
    memory = Memory(
        model=model,
        rows=plan.pool,
        capacity=capacity,
        shapes=shapes,
        free=free_bytes(model.device),
        drafted=plan.num_speculative_tokens,
        debug=plan.debug,
    )
    return plan.method.executor(memory)


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
    if isinstance(draft, BoundModel | ForeignModel):
        executor = _executor(draft, plan, plan.draft_capacity, plan.draft_shapes)
        return ModelDrafter(
            executor=executor,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            vocab_size=plan.target.vocab_size,
            confidence_threshold=plan.confidence_threshold,
            prefixes=_prefixes(executor, plan),
        )
    return draft


def name_of(part: Any) -> str | None:
    """What reports call a target or a draft."""
    if part is None:
        return None
    if isinstance(part, ForeignModel):
        return part.name
    if isinstance(part, BoundModel):
        return part.model.config._name_or_path or type(part.model).__name__
    return "ngram" if isinstance(part, Ngram) else getattr(part, "name", type(part).__name__)
