"""What generated faults are taken for: counts per half, and false alarms."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from draftproof.faultlab.generated.cases import (
    GeneratedCase,
    Vantage,
    correct_case,
    faulty_case,
)
from draftproof.faultlab.generated.circumstances import USEFUL
from draftproof.faultlab.generated.operators import Operator, halves
from draftproof.faultlab.generated.operators.base import UNKNOWN
from draftproof.faultlab.generated.vantages import seen, why_not
from draftproof.faultlab.selftest_case import FALSE_ALARMS, finding_of
from draftproof.forensics.verdicts import Cause, Finding


class Half(StrEnum):
    """Parts of a report."""

    OPEN = "open half"
    HELD_OUT = "held-out half"
    PAIRS = "pairs, held out"
    CORRECT = "correct"


class Outcome(StrEnum):
    """How good a verdict on a fault is."""

    RIGHT = "named rightly"
    USEFUL = "useful"
    UNDECIDED = "undecided"
    MISLEADING = "misleading"


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """One case and its verdict.

    verdict: the kind where there is one, else the cause
    forked:  whether some row differed
    """

    half: Half
    settings: dict[str, Any]
    cause: Cause
    verdict: str
    rule: str
    outcome: Outcome | None
    forked: bool
    seconds: float

    @property
    def alarm(self) -> bool:
        """A correct configuration that was suspected."""
        return self.outcome is None and self.cause in FALSE_ALARMS


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedReport:
    """All cases of a seed.

    harmless: draws in which no fault showed, by half
    left_out: what this installation cannot do
    """

    seed: int
    examined: tuple[Examined, ...]
    harmless: dict[Half, int]
    left_out: tuple[str, ...] = ()

    def of(self, half: Half) -> list[Examined]:
        """Cases of one part."""
        return [one for one in self.examined if one.half is half]

    def counts(self, half: Half) -> Counter[Outcome]:
        """Verdicts on the faults of a part."""
        return Counter(one.outcome for one in self.of(half) if one.outcome is not None)

    @property
    def alarms(self) -> list[Examined]:
        """Correct configurations that were suspected."""
        return [one for one in self.of(Half.CORRECT) if one.alarm]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. What is held out is counted and not shown: nobody shall tune on it."""
        faults = [half for half in Half if half is not Half.CORRECT and self.of(half)]
        correct = self.of(Half.CORRECT)
        return {
            "seed": self.seed,
            "faults": {
                half.value: {
                    "cases": len(self.of(half)),
                    **{one.value: self.counts(half)[one] for one in Outcome},
                    "did not show": self.harmless.get(half, 0),
                    "by_vantage": self._by_vantage(half),
                }
                for half in faults
            },
            "correct": {
                "cases": len(correct),
                "forked": sum(one.forked for one in correct),
                "false_alarms": len(self.alarms),
            },
            "seconds_per_examination": self.pace,
            "left_out": list(self.left_out),
            "open_cases": [_shown(one) for one in self.of(Half.OPEN)],
            "alarms": [_shown(one) for one in self.alarms],
        }

    @property
    def pace(self) -> float:
        """Mean seconds of an examination."""
        return round(sum(o.seconds for o in self.examined) / max(1, len(self.examined)), 2)

    def _by_vantage(self, half: Half) -> dict[str, dict[str, int]]:
        table: dict[str, dict[str, int]] = {}
        for one in self.of(half):
            if one.outcome is not None:
                line = table.setdefault(one.settings["vantage"], {})
                line[one.outcome.value] = line.get(one.outcome.value, 0) + 1
        return table


def _shown(one: Examined) -> dict[str, Any]:
    outcome = None if one.outcome is None else one.outcome.value
    return {
        **one.settings,
        "cause": one.cause.value,
        "verdict": one.verdict,
        "rule": one.rule,
        "outcome": outcome,
        "seconds": one.seconds,
    }


Progress = Callable[[Examined], None]


def generated(
    count: int,
    seed: int,
    *,
    held_out: bool = False,
    correct: int | None = None,
    progress: Progress = lambda one: None,
) -> GeneratedReport:
    """Examine `count` drawn faults of the open half; with `held_out` as many of the other half and
    half as many pairs; and correct configurations, twice as many unless `correct` says so."""
    done, harmless = [], Counter[Half]()
    for half, number, operators in _plan(count, held_out):
        case = faulty_case(number, seed, operators)
        if case is None:
            harmless[half] += 1
        elif _possible(case):
            done.append(examined(case, half))
            progress(done[-1])
    for number in range(2 * count if correct is None else correct):
        case = correct_case(number, seed)
        if _possible(case):
            done.append(examined(case, Half.CORRECT))
            progress(done[-1])
    missing = why_not()
    return GeneratedReport(
        seed=seed,
        examined=tuple(done),
        harmless=dict(harmless),
        left_out=() if missing is None else (missing,),
    )


def _possible(case: GeneratedCase) -> bool:
    return case.vantage in (Vantage.ENGINE, Vantage.FILE) or why_not() is None


def _plan(count: int, held_out: bool) -> Iterator[tuple[Half, int, tuple[Operator, ...]]]:
    """Every operator in turn; pairs of operators that follow each other by a growing distance."""
    shown, hidden = halves()
    yield from _in_turn(Half.OPEN, shown, count)
    if held_out:
        yield from _in_turn(Half.HELD_OUT, hidden, count)
        yield from _pairs((*shown, *hidden), count // 2)


def _in_turn(
    half: Half, operators: Sequence[Operator], count: int
) -> Iterable[tuple[Half, int, tuple[Operator, ...]]]:
    chosen = itertools.islice(itertools.cycle(operators), count)
    return ((half, number, (operator,)) for number, operator in enumerate(chosen))


def _pairs(
    operators: Sequence[Operator], count: int
) -> Iterable[tuple[Half, int, tuple[Operator, ...]]]:
    size = len(operators)
    for number in range(count):
        first, distance = number % size, 7 + 5 * (number // size)
        yield Half.PAIRS, number, (operators[first], operators[(first + distance) % size])


def examined(case: GeneratedCase, half: Half) -> Examined:
    """Ask what a case is, and judge the answer."""
    with seen(case) as candidate:
        started = time.perf_counter()
        finding, forks = finding_of(case.reference(), candidate, case.inquiry)
        seconds = time.perf_counter() - started
    return Examined(
        half=half,
        settings=case.settings,
        cause=finding.cause,
        verdict=_name(finding),
        rule=finding.rule,
        outcome=judged(case, finding) if case.placed else None,
        forked=forks,
        seconds=round(seconds, 2),
    )


def _name(finding: Finding) -> str:
    return finding.cause.value if finding.kind is None else finding.kind.value


def judged(case: GeneratedCase, finding: Finding) -> Outcome:
    """By what the operators say, and by what the circumstances excuse. Of a pair one is enough.

    Candidates for an unknown kind must hold a right or useful one, where there is a kind that is.
    """
    if finding.cause is Cause.UNDECIDED:
        return Outcome.UNDECIDED
    name = _name(finding)
    right = {kind for operator in case.operators for kind in operator.right}
    useful = {kind for operator in case.operators for kind in operator.useful}
    useful |= {kind for one in case.placed for kind in USEFUL.get(one.circumstance.when, ())}
    candidates = {kind.value for kind in getattr(finding, "candidates", ())}
    if candidates and UNKNOWN not in right and not candidates & (right | useful):
        return Outcome.MISLEADING
    if name in right:
        return Outcome.RIGHT
    return Outcome.USEFUL if name in useful else Outcome.MISLEADING
