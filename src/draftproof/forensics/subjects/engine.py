"""Our own engine as a subject: any method, any drafter, watched from inside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from draftproof.api import Pair
from draftproof.engine.engine import Engine
from draftproof.errors import DraftproofError
from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Counters,
    Inquiry,
    Run,
    Setup,
    failed,
)
from draftproof.forensics.subjects.watching import (
    SerialExecutor,
    TopsVerifier,
    Transcript,
)
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.testing import ScriptedDrafter
from draftproof.types import Result, SpecStats


class RiggedPair(Pair):
    """A pair whose engines are handed to `rig` before they run."""

    rig: Callable[[Engine], Engine] | None = None

    def prepare(self, prompts: Any, **options: Any) -> Any:
        job = super().prepare(prompts, **options)
        return job if self.rig is None else replace(job, engine=self.rig(job.engine))


@dataclass(kw_only=True)
class EngineSubject:
    """A target, a drafter and their settings.

    target, draft: loaded transformers models; draft also "ngram", a drafter, or None
    workshop:      where models are cast and bound; subjects of the same models may share one
    """

    name: str
    target: Any
    draft: Any = None
    tokenizer: Any = None
    batch: int = 8
    k: int = 4
    dtype: str | None = None  # None: as loaded
    options: dict[str, Any] = field(default_factory=dict)  # of Pair: method, numerics, ...
    workshop: Workshop = field(default_factory=Workshop, repr=False)
    _announced: bool = field(default=False, init=False, repr=False)

    abilities: ClassVar[frozenset[Ability]] = frozenset(Ability) - {Ability.SCORES}

    @property
    def model(self) -> Any:
        """The target, in the dtype that this subject runs in."""
        return self._models(self.dtype)[0]

    def model_as(self, dtype: str) -> tuple[Any, Any]:
        """Target and draft in another dtype, for controls."""
        return self._models(dtype)

    def settings(self) -> dict[str, Any]:
        """As they run."""
        pair = self._pair(OWN)
        return {"kind": "engine", **pair.describe(), "batch": self.batch, "k": self.k}

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """A pass over all tasks; a refusal of the engine is every row's error."""
        try:
            with self._announcing():
                return self._run(inquiry, setup)
        except DraftproofError as error:
            return failed(inquiry.tasks, f"{type(error).__name__}: {error}")

    @contextmanager
    def _announcing(self) -> Iterator[None]:
        """The library's notes (size of weights and cache) of the first run only: an examination
        runs a subject dozens of times, and its verdict must not drown in them."""
        log = logging.getLogger("draftproof")
        before = log.level
        if self._announced:
            log.setLevel(max(before, logging.WARNING))
        self._announced = True
        try:
            yield
        finally:
            log.setLevel(before)

    def _run(self, inquiry: Inquiry, setup: Setup) -> Run:
        pair, watch = self._pair(setup), _Watch()
        rows = self.batch if setup.batch is None else setup.batch
        pair.rig = lambda engine: self._rig(engine, inquiry, setup, watch)
        results = pair.generate(
            [list(task.prompt) for task in inquiry.tasks],
            max_num_seqs=rows,
            num_speculative_tokens=self.k if setup.k is None else setup.k,
            observers=[watch.transcript],
            **_ending(inquiry),
        )
        answers = tuple(watch.answer(result) for result in results)
        return Run(answers=answers, counters=_counters(results))

    def _rig(self, engine: Engine, inquiry: Inquiry, setup: Setup, watch: _Watch) -> Engine:
        return self._watched(self._scripted(engine, inquiry, setup), setup, watch)

    def _scripted(self, engine: Engine, inquiry: Inquiry, setup: Setup) -> Engine:
        if setup.script is not None:
            engine.drafter = ScriptedDrafter(
                continuations=setup.script.continuations, wrong_at=setup.script.right
            )
        return engine

    def _watched(self, engine: Engine, setup: Setup, watch: _Watch) -> Engine:
        if setup.serial:
            engine.target = SerialExecutor(engine.target)
        engine.verifier = watch.verifier = TopsVerifier(inner=engine.verifier)
        return engine

    def _pair(self, setup: Setup) -> RiggedPair:
        """Made once per dtype: binding a model probes it, and may calibrate kernels."""
        target, draft = self._models(setup.dtype or self.dtype)
        # a script needs a pair that drafts at all; the drafter is replaced in its engine
        drafter = "ngram" if setup.script is not None else draft
        named = drafter if isinstance(drafter, str) else id(drafter)
        key = ("pair", id(target), named, id(self.tokenizer), repr(sorted(self.options.items())))
        return self.workshop.once(
            key,
            lambda: RiggedPair(target, drafter, tokenizer=self.tokenizer, **self.options),
            *(target, drafter, self.tokenizer),
        )

    def _models(self, dtype: str | None) -> tuple[Any, Any]:
        return self.workshop.cast(self.target, dtype), self.workshop.cast(self.draft, dtype)


@dataclass(kw_only=True)
class _Watch:
    """What one run leaves behind."""

    transcript: Transcript = field(default_factory=Transcript)
    verifier: TopsVerifier | None = None

    def answer(self, result: Result) -> Answer:
        ids = tuple(result.token_ids)
        tops = () if self.verifier is None else self.verifier.of(result.index, len(ids))
        return Answer(
            ids=ids,
            tops=tops,
            rounds=self.transcript.of(result.index),
            finish_reason=str(result.finish_reason),
        )


def _ending(inquiry: Inquiry) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_new_tokens": inquiry.max_new_tokens,
        "min_new_tokens": inquiry.min_new_tokens,
        "stop_strings": list(inquiry.stop_strings) or None,
    }
    if inquiry.eos_token_id is not None:
        options["eos_token_id"] = list(inquiry.eos_token_id)
    if inquiry.temperature is not None:
        options |= {
            "do_sample": True,
            "temperature": inquiry.temperature,
            "seed": [task.index for task in inquiry.tasks],
            # drafts are drawn on their own and accepted by min(1, p / q)
            "coupling": "rejection",
        }
    return options


def _counters(results: Sequence[Result]) -> Counters:
    total = SpecStats()
    for result in results:
        total += result.stats
    return Counters(
        drafted=total.num_draft_tokens,
        accepted=total.num_accepted_draft_tokens,
        rounds=total.num_spec_steps,
        source="engine",
    )
