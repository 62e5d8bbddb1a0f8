"""The proof that the detector works: every fault is found and named, and nothing else is.

Two tables: injected faults against what they are taken for, and correct configurations, none of
which may be called a bug.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from draftproof.api import Pair
from draftproof.errors import NumericsError, UnsupportedArgumentError
from draftproof.forensics import selftest_http
from draftproof.forensics.faults import FAULTS, Fault, Scene
from draftproof.forensics.stages import Stage, demo_stage, leaning, quick_stage, tiny_stage
from draftproof.forensics.subjects.base import Inquiry, Task
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.remembering import Memory, Remembering
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.forensics.trials import Trial, tried
from draftproof.forensics.verdicts import Kind
from draftproof.testing import random_prompts, tiny_model

ARCHITECTURES = ("llama", "gpt2", "gemma3_text")
DTYPES = ("float32", "bfloat16")
BATCHES = (1, 2, 4)
KS = (1, 2, 3, 5)
QUICK = {"gemma3_text": (("model", "ngram"), (1, 3))}  # the slowest: the rest is the long run's
METHODS = ("eqspec", "exspec", "rollback")
DRAFTERS = ("model", "itself", "ngram")


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """Both tables.

    left_out: correct configurations that this machine or build does not offer
    """

    faults: tuple[Trial, ...]
    correct: tuple[Trial, ...]
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every fault on the diagonal, and no false alarm."""
        return all(trial.right for trial in (*self.faults, *self.correct))

    @property
    def alarms(self) -> list[Trial]:
        """Correct configurations that were called something else."""
        return [trial for trial in self.correct if not trial.right]

    @property
    def matrix(self) -> dict[Kind, dict[str, int]]:
        """Injected kind -> what it was taken for -> how often."""
        table: dict[Kind, dict[str, int]] = {}
        for trial in self.faults:
            assert trial.expected is not None
            row = table.setdefault(trial.expected, {})
            taken = trial.found.value if trial.found is not None else trial.cause.value
            row[taken] = row.get(taken, 0) + 1
        return table

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "passed": self.passed,
            "matrix": {kind.value: row for kind, row in self.matrix.items()},
            "false_alarms": len(self.alarms),
            "correct_configurations": len(self.correct),
            "left_out": list(self.left_out),
            "faults": [asdict(trial) | {"right": trial.right} for trial in self.faults],
            "correct": [asdict(trial) | {"right": trial.right} for trial in self.correct],
        }


Progress = Callable[[Trial], None]


def selftest(*, quick: bool = True, progress: Progress = lambda trial: None) -> SelfTest:
    """Both tables; `quick` takes models of one layer, no demo pair, fewer correct configurations.

    progress: is told of every trial
    """
    stages = [quick_stage] if quick else [tiny_stage, demo_stage]
    left_out: list[str] = []
    missing = selftest_http.why_not()
    faults = [_fault_trials(stages, FAULTS)]
    correct = [correct_trials(quick=quick, left_out=left_out.append)]
    if missing is None:
        faults.append(selftest_http.fault_trials(stages[0], FAULTS))
        correct.append(selftest_http.correct_trials(stages[0], quick=quick))
    else:
        left_out.append(missing)
    done = [_told(progress, itertools.chain(*trials)) for trials in (faults, correct)]
    return SelfTest(faults=done[0], correct=done[1], left_out=tuple(left_out))


def _told(progress: Progress, trials: Iterable[Trial]) -> tuple[Trial, ...]:
    done = []
    for trial in trials:
        progress(trial)
        done.append(trial)
    return tuple(done)


# -- faults ----------------------------------------------------------------------------------------


def _fault_trials(
    makers: Sequence[Callable[[Scene], Stage | None]], faults: Sequence[Fault]
) -> Iterator[Trial]:
    for maker in makers:
        stage_of = cache(maker)
        for fault in faults:
            stage = stage_of(fault.scene)
            if stage is not None:
                yield fault_trial(stage, fault)


def fault_trial(stage: Stage, fault: Fault) -> Trial:
    """Inject one fault and see what it is taken for."""
    return tried(
        name=fault.name,
        stage=stage.name,
        expected=fault.kind,
        reference=stage.reference(),
        candidate=stage.candidate(fault),
        inquiry=stage.inquiry,
    )


# -- correct configurations ------------------------------------------------------------------------


def correct_trials(
    *, quick: bool = True, left_out: Callable[[str], None] = lambda why: None
) -> Iterator[Trial]:
    """architectures x dtypes x drafters x batch sizes x K, then other methods and numerics.

    left_out: is told what this machine or build does not offer
    """
    for architecture, dtype in itertools.product(ARCHITECTURES, DTYPES):
        few = QUICK.get(architecture) if quick else None
        drafters, ks = few or (DRAFTERS, KS)
        way = _Way(architecture=architecture, dtype=dtype)
        yield from way.trials(drafters, BATCHES, ks, left_out)
    for method, dtype in itertools.product(METHODS, DTYPES):
        way = _Way(architecture="llama", dtype=dtype, method=method)
        yield from way.trials(("model",), (2, 4), (1, 3), left_out)
    for architecture, dtype in itertools.product(ARCHITECTURES, DTYPES):
        way = _Way(architecture=architecture, dtype=dtype, numerics="exact")
        yield from way.trials(("model",), (1, 4), (1, 3), left_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """One model with one way to compute."""

    architecture: str
    dtype: str
    numerics: str = "fast"
    method: str = "rows"

    def trials(
        self,
        drafters: Sequence[str],
        batches: Sequence[int],
        ks: Sequence[int],
        left_out: Callable[[str], None],
    ) -> Iterator[Trial]:
        """A trial per drafter, batch size and K, or none where this machine has not the way."""
        target = tiny_model(self.architecture)
        drafts = {"model": leaning(target), "itself": target, "ngram": "ngram"}
        workshop, memory = Workshop(), Memory()
        shared: dict[str, Any] = {"target": target, "dtype": self.dtype, "workshop": workshop}
        own: dict[str, Any] = {"numerics": self.numerics, "method": self.method}
        how = f"{self.dtype}, {self.numerics}, {self.method}"
        try:
            Pair(workshop.cast(target, self.dtype), **own)
        except (NumericsError, UnsupportedArgumentError) as error:
            left_out(f"{self.architecture}, {how}: {error}")
            return
        for drafter, batch, k in itertools.product(drafters, batches, ks):
            candidate = EngineSubject(
                name=drafter, draft=drafts[drafter], batch=batch, k=k, options=own, **shared
            )
            plain = Remembering(
                name="plain",
                batch=1,
                k=0,
                options={"numerics": self.numerics},
                memory=memory,
                **shared,
            )
            yield tried(
                name=f"{how}, {drafter}, B = {batch}, K = {k}",
                stage=self.architecture,
                expected=None,
                reference=plain,
                candidate=candidate,
                inquiry=_question(),
            )


def _question() -> Inquiry:
    prompts = random_prompts((3, 9, 14, 5), seed=1)
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    return Inquiry(tasks=tasks, max_new_tokens=10, eos_token_id=())
