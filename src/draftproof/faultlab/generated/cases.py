"""Cases drawn from a seed: a model, requests, a vantage point, and one or two faults, or none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

from draftproof.batch import Row
from draftproof.drafters.base import Drafter
from draftproof.engine.engine import Engine
from draftproof.faultlab.fake_server import place_of
from draftproof.faultlab.faulty_engine import FaultyEngine, Rig
from draftproof.faultlab.generated.circumstances import Circumstance, When
from draftproof.faultlab.generated.operators import Draw, Need, Operator
from draftproof.faultlab.generated.seam import Placed, delivery_of, rig_of
from draftproof.faultlab.run_cache import CachedEngine
from draftproof.faultlab.simulated_rounding import rounding
from draftproof.forensics.subjects.assisted import TransformersSubject
from draftproof.forensics.subjects.base import OWN, Answer, Inquiry, Run, Setup, Subject, Task
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.testing import noisy_copy, tiny_model

# architecture -> sizes: of one layer where one layer shows everything
ARCHITECTURES: dict[str, dict[str, int]] = {
    "llama": {"num_hidden_layers": 1},
    "qwen2": {"num_hidden_layers": 2},
    "gpt2": {"num_hidden_layers": 1},
    "mistral": {"num_hidden_layers": 1},
    "gpt_neox": {"num_hidden_layers": 1},
}
WINDOWED = ("mistral",)
SEEDS = 2  # of each architecture
NOISE = (0.08, 0.15, 0.3)  # of the draft's weights
DTYPES = ("float32", "float32", "bfloat16", "float16")
SHARED = 20  # tokens that all prompts begin with, where prefixes are to be reused
METHODS = ("rows",) * 5 + ("eqspec", "exspec", "rollback")  # of correct configurations
TRIES = 8  # draws of one case until its faults bite


class Vantage(StrEnum):
    """From where the candidate is seen."""

    ENGINE = "engine"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA = "llama.cpp"
    FILE = "file"


VANTAGES = (
    *(Vantage.ENGINE,) * 4,
    *(Vantage.VLLM,) * 2,
    Vantage.SGLANG,
    Vantage.LLAMA,
    *(Vantage.FILE,) * 2,
)


@dataclass(frozen=True, kw_only=True)
class Models:
    """A target, drafts of several qualities, and what was made of them."""

    target: Any
    drafts: dict[float, Any]
    workshop: Workshop = field(default_factory=Workshop)


@cache
def models(architecture: str, seed: int, vocab_size: int) -> Models:
    """Made once; the binding of a model costs more than a run of it."""
    target = tiny_model(
        architecture, seed=seed, vocab_size=vocab_size, **ARCHITECTURES[architecture]
    )
    drafts = {amount: noisy_copy(target, amount=amount, seed=seed) for amount in NOISE}
    return Models(target=target, drafts=drafts)


@dataclass(frozen=True, kw_only=True)
class GeneratedCase:
    """All that was drawn.

    placed:  the faults; none for a correct configuration
    uneven:  every second row drafts one token only
    method:  of the engine; transformers: whether transformers' own `generate` is the reference,
             with another attention than the engine's
    """

    number: int
    seed: int
    architecture: str
    model_seed: int
    vocab_size: int
    dtype: str
    noise: float
    k: int
    batch: int
    inquiry: Inquiry
    vantage: Vantage
    uneven: bool = False
    method: str = "rows"
    transformers: bool = False
    operators: tuple[Operator, ...] = ()
    placed: tuple[Placed, ...] = ()

    @property
    def models(self) -> Models:
        """Shared with other cases of the same models."""
        return models(self.architecture, self.model_seed, self.vocab_size)

    @property
    def rounds_differently(self) -> bool:
        """Whether every forward rounds in its own way, as kernels of real sizes do."""
        return self.dtype != "float32"

    @property
    def settings(self) -> dict[str, Any]:
        """For reports."""
        lengths = [len(task.prompt) for task in self.inquiry.tasks]
        return {
            "number": self.number,
            "architecture": self.architecture,
            "dtype": self.dtype,
            "k": self.k,
            "batch": self.batch,
            "prompts": lengths,
            "new": self.inquiry.max_new_tokens,
            "vantage": self.vantage.value,
            "method": self.method,
            "reference": "transformers" if self.transformers else "engine",
            "operators": [one.name for one in self.operators],
            "when": [one.circumstance.when.value for one in self.placed],
        }

    # -- subjects ----------------------------------------------------------------------------------

    def reference(self) -> Subject:
        """Plain, one row at a time."""
        if self.transformers:
            return TransformersSubject(name="transformers", target=self._cast(self.models.target))
        own = rounding() if self.rounds_differently else None
        return CachedEngine(batch=1, k=0, rig=own, **self._common("plain"))

    def candidate(self, *, faulty: bool = True) -> GeneratedEngine:
        """Speculative and batched, with the faults or without."""
        placed = self.placed if faulty else ()
        common = self._common("faulty" if placed else "correct")
        for one in placed:
            if one.injection.weights is not None:
                common["target"] = one.injection.weights(common["target"])
                common["workshop"] = Workshop()
        return GeneratedEngine(
            draft=self._cast(self.models.drafts[self.noise]),
            batch=self.batch,
            k=self.k,
            rig=self._rig(placed),
            deliver=delivery_of(placed) if placed else None,
            placed=placed,
            **common | {"options": {"numerics": "fast", "method": self.method}},
        )

    def _common(self, name: str) -> dict[str, Any]:
        return {
            "name": f"{self.architecture}: {name}",
            "target": self._cast(self.models.target),
            "options": {"numerics": "fast"},
            "workshop": self.models.workshop,
        }

    def _cast(self, model: Any) -> Any:
        """As if loaded in the case's dtype, so that float32 makes the same of it on both sides."""
        return self.models.workshop.cast(model, self.dtype)

    def _rig(self, placed: Sequence[Placed]) -> Rig:
        rigs = [rounding()] if self.rounds_differently else []
        rigs += [uneven_drafts] if self.uneven else []
        rigs += [rig_of(placed)] if placed else []

        def rig(engine: Engine, inquiry: Inquiry) -> Engine:
            for one in rigs:
                engine = one(engine, inquiry)
            return engine

        return rig

    # -- does it show ------------------------------------------------------------------------------

    def bites(self) -> bool:
        """Whether the faults change the output, as asked and without any rounding, and every row
        of the faulty run was answered."""
        wrong, right = (self._asked(self.candidate(faulty=faulty)) for faulty in (True, False))
        if wrong.ids == right.ids or any(answer.error for answer in wrong.answers):
            return False
        clean = replace(self, dtype="float32")
        plain = clean.reference().run(self.inquiry)
        if self.rounds_differently:
            wrong = clean._asked(clean.candidate())
        return wrong.ids != plain.ids

    def _asked(self, subject: FaultyEngine) -> Run:
        """As the vantage point asks: a fake server runs what comes together, and nothing else."""
        if self.vantage in (Vantage.ENGINE, Vantage.FILE):
            return subject.run(self.inquiry)
        answers: dict[int, Answer] = {}
        tasks = self.inquiry.tasks
        for first in range(0, len(tasks), self.batch):
            group = sorted(tasks[first : first + self.batch], key=lambda t: place_of(t.prompt))
            numbered = tuple(replace(task, index=place) for place, task in enumerate(group))
            run = subject.run(replace(self.inquiry, tasks=numbered))
            answers |= {t.index: a for t, a in zip(group, run.answers, strict=True)}
        return Run(answers=tuple(answers[task.index] for task in tasks))


@dataclass(kw_only=True)
class GeneratedEngine(FaultyEngine):
    """A faulty engine that also asks itself something else than it was asked."""

    placed: Sequence[Placed] = ()

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        for one in self.placed:
            if one.injection.ask is not None:
                inquiry = one.injection.ask(inquiry)
        return super().run(inquiry, setup)


@dataclass
class LimitedDrafter:
    """A drafter that gives every second request one draft at most: correct, and uneven."""

    inner: Drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def limit(self, row: Row) -> int | None:
        """As Drafter.limit."""
        return 1 if row.request.index % 2 else self.inner.limit(row)


def uneven_drafts(engine: Engine, inquiry: Inquiry) -> Engine:
    """Rows of unequal K."""
    engine.drafter = LimitedDrafter(engine.drafter)
    return engine


# -- drawing ---------------------------------------------------------------------------------------


def faulty_case(number: int, seed: int, operators: tuple[Operator, ...]) -> GeneratedCase | None:
    """A case in which the faults bite; None where TRIES draws gave none."""
    for attempt in range(TRIES):
        rng = random.Random(f"{seed}:{number}:{attempt}:{'+'.join(o.name for o in operators)}")
        case = _draw(rng, number, seed, operators)
        if case is not None and case.bites():
            return case
    return None


def correct_case(number: int, seed: int) -> GeneratedCase:
    """No fault. In 16 bits the vocabulary is large and the rows are long: many fork."""
    rng = random.Random(f"{seed}:correct:{number}")
    dtype = rng.choice(DTYPES)
    wide = dtype != "float32"
    case = _blank(rng, number, seed, frozenset(), vocab_size=1024 if wide else 101)
    new = rng.choice((24, 32)) if wide else rng.choice((10, 16))
    method = rng.choice(METHODS)
    return replace(
        case,
        dtype=dtype,
        uneven=method == "rows" and rng.random() < 0.2,
        method=method,
        transformers=rng.random() < 0.25,
        inquiry=replace(case.inquiry, max_new_tokens=new),
    )


def _draw(
    rng: random.Random, number: int, seed: int, operators: tuple[Operator, ...]
) -> GeneratedCase | None:
    needs = frozenset(need for one in operators for need in one.needs)
    whens = [rng.choice(one.whens) for one in operators]
    if any(when in (When.NEIGHBOUR_ENDED, When.UNEQUAL_K) for when in whens):
        needs |= {Need.BATCH}
    case = _blank(rng, number, seed, needs, shared=When.PREFIX_REUSE in whens)
    case = replace(case, uneven=When.UNEQUAL_K in whens, operators=operators)
    if When.PREFIX_REUSE in whens and case.vantage not in (Vantage.ENGINE, Vantage.FILE):
        case = replace(case, vantage=Vantage.ENGINE)  # a fake server's rows all start at once
    outputs = case.reference().run(case.inquiry).ids
    if Need.EOS in needs or When.NEIGHBOUR_ENDED in whens:
        ends = tuple({rng.choice(ids[3:]) for ids in outputs[::2]})
        case = replace(case, inquiry=replace(case.inquiry, eos_token_id=ends))
        outputs = case.reference().run(case.inquiry).ids
    if not any(len(ids) > 1 for ids in outputs):
        return None
    draw = Draw(rng=rng, vocab_size=case.vocab_size, k=case.k, batch=case.batch, outputs=outputs)
    placed = [
        Placed(injection=one.make(draw), circumstance=_circumstance(rng, when, one, draw))
        for one, when in zip(operators, whens, strict=True)
    ]
    if sum(one.injection.rig is not None for one in placed) > 1:
        return None  # one executor cannot be put around itself
    return replace(case, placed=tuple(placed))


def _circumstance(rng: random.Random, when: When, operator: Operator, draw: Draw) -> Circumstance:
    return Circumstance(
        when=when,
        length=rng.randint(10, 20),
        one_in=rng.choice((2, 4, 8)),
        tokens=frozenset({draw.token()}),
        prefill=operator.prefill,
    )


def _blank(
    rng: random.Random,
    number: int,
    seed: int,
    needs: frozenset[Need],
    *,
    vocab_size: int = 101,
    shared: bool = False,
) -> GeneratedCase:
    """Everything but faults."""
    names = WINDOWED if Need.WINDOW in needs else tuple(ARCHITECTURES)
    least = 2 if Need.BATCH in needs else 1
    rows = rng.randint(4, 6)
    beginning = [rng.randrange(1, vocab_size) for _ in range(SHARED if shared else 0)]
    prompts = [
        (*beginning, *(rng.randrange(1, vocab_size) for _ in range(rng.randint(2, 16))))
        for _ in range(rows)
    ]
    tasks = tuple(Task(index=i, prompt=prompt) for i, prompt in enumerate(prompts))
    return GeneratedCase(
        number=number,
        seed=seed,
        architecture=rng.choice(names),
        model_seed=rng.randrange(SEEDS),
        vocab_size=vocab_size,
        dtype=rng.choice(DTYPES),
        noise=rng.choice(NOISE),
        k=rng.randint(2, 5),
        batch=2 if shared else rng.randint(least, 5),  # fewer than rows: one is copied by another
        inquiry=Inquiry(tasks=tasks, max_new_tokens=rng.randint(14, 24), eos_token_id=()),
        vantage=rng.choice(VANTAGES),
    )
