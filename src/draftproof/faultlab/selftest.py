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
from draftproof.faultlab import selftest_http
from draftproof.faultlab.faults import FAULTS, Condition, Fault
from draftproof.faultlab.run_cache import CachedEngine, RunCache
from draftproof.faultlab.scenarios import Scenario, demo_scenario, quick_scenario, tiny_scenario
from draftproof.faultlab.selftest_case import Case, examined
from draftproof.forensics.subjects.base import Inquiry, Task
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.forensics.verdicts import Kind
from draftproof.testing import noisy_copy, random_prompts, tiny_model

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

    faults: tuple[Case, ...]
    correct: tuple[Case, ...]
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every fault on the diagonal, and no false alarm."""
        return all(case.right for case in (*self.faults, *self.correct))

    @property
    def alarms(self) -> list[Case]:
        """Correct configurations that were called something else."""
        return [case for case in self.correct if not case.right]

    @property
    def matrix(self) -> dict[Kind, dict[str, int]]:
        """Injected kind -> what it was taken for -> how often."""
        table: dict[Kind, dict[str, int]] = {}
        for case in self.faults:
            assert case.expected is not None
            row = table.setdefault(case.expected, {})
            taken = case.found.value if case.found is not None else case.cause.value
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
            "faults": [asdict(case) | {"right": case.right} for case in self.faults],
            "correct": [asdict(case) | {"right": case.right} for case in self.correct],
        }


Progress = Callable[[Case], None]


def selftest(*, quick: bool = True, progress: Progress = lambda case: None) -> SelfTest:
    """Both tables; `quick` takes models of one layer, no demo pair, fewer correct configurations.

    progress: is told of every case
    """
    scenarios = [quick_scenario] if quick else [tiny_scenario, demo_scenario]
    left_out: list[str] = []
    missing = selftest_http.why_not()
    faults = [_fault_cases(scenarios, FAULTS)]
    correct = [correct_cases(quick=quick, left_out=left_out.append)]
    if missing is None:
        faults.append(selftest_http.fault_cases(scenarios[0], FAULTS))
        correct.append(selftest_http.correct_cases(scenarios[0], quick=quick))
    else:
        left_out.append(missing)
    done = [_told(progress, itertools.chain(*cases)) for cases in (faults, correct)]
    return SelfTest(faults=done[0], correct=done[1], left_out=tuple(left_out))


def _told(progress: Progress, cases: Iterable[Case]) -> tuple[Case, ...]:
    done = []
    for case in cases:
        progress(case)
        done.append(case)
    return tuple(done)


# -- faults ----------------------------------------------------------------------------------------


def _fault_cases(
    makers: Sequence[Callable[[Condition], Scenario | None]], faults: Sequence[Fault]
) -> Iterator[Case]:
    for maker in makers:
        scenario_of = cache(maker)
        for fault in faults:
            scenario = scenario_of(fault.condition)
            if scenario is not None:
                yield fault_case(scenario, fault)


def fault_case(scenario: Scenario, fault: Fault) -> Case:
    """Inject one fault and see what it is taken for."""
    return examined(
        name=fault.name,
        scenario=scenario.name,
        expected=fault.kind,
        reference=scenario.reference(),
        candidate=scenario.candidate(fault),
        inquiry=scenario.inquiry,
    )


# -- correct configurations ------------------------------------------------------------------------


def correct_cases(
    *, quick: bool = True, left_out: Callable[[str], None] = lambda why: None
) -> Iterator[Case]:
    """architectures x dtypes x drafters x batch sizes x K, then other methods and numerics.

    left_out: is told what this machine or build does not offer
    """
    for architecture, dtype in itertools.product(ARCHITECTURES, DTYPES):
        few = QUICK.get(architecture) if quick else None
        drafters, ks = few or (DRAFTERS, KS)
        way = _Way(architecture=architecture, dtype=dtype)
        yield from way.cases(drafters, BATCHES, ks, left_out)
    for method, dtype in itertools.product(METHODS, DTYPES):
        way = _Way(architecture="llama", dtype=dtype, method=method)
        yield from way.cases(("model",), (2, 4), (1, 3), left_out)
    for architecture, dtype in itertools.product(ARCHITECTURES, DTYPES):
        way = _Way(architecture=architecture, dtype=dtype, numerics="exact")
        yield from way.cases(("model",), (1, 4), (1, 3), left_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """One model with one way to compute."""

    architecture: str
    dtype: str
    numerics: str = "fast"
    method: str = "rows"

    def cases(
        self,
        drafters: Sequence[str],
        batches: Sequence[int],
        ks: Sequence[int],
        left_out: Callable[[str], None],
    ) -> Iterator[Case]:
        """A case per drafter, batch size and K, or none where this machine has not the way."""
        target = tiny_model(self.architecture)
        drafts = {"model": noisy_copy(target), "itself": target, "ngram": "ngram"}
        workshop, cache = Workshop(), RunCache()
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
            plain = CachedEngine(
                name="plain",
                batch=1,
                k=0,
                options={"numerics": self.numerics},
                cache=cache,
                **shared,
            )
            yield examined(
                name=f"{how}, {drafter}, B = {batch}, K = {k}",
                scenario=self.architecture,
                expected=None,
                reference=plain,
                candidate=candidate,
                inquiry=_question(),
            )


def _question() -> Inquiry:
    prompts = random_prompts((3, 9, 14, 5), seed=1)
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    return Inquiry(tasks=tasks, max_new_tokens=10, eos_token_id=())
