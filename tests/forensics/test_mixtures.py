"""Rows of one run that differ for different reasons: each gets its cause, the run the gravest.

Stop rules that differ (harness), near ties (numeric) and real faults (a bug) in every combination.
The subjects are the engine on tiny models in bfloat16, whose target rounds in its own way for every
batch; a candidate that knows nothing of K and drafts stands for a server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import pytest

from draftproof.faultlab.faults import Fault, by_name
from draftproof.faultlab.faulty_engine import FaultyEngine
from draftproof.faultlab.scenarios import Scenario
from draftproof.faultlab.simulated_rounding import rounding
from draftproof.forensics.diagnose import Diagnosis, diagnose
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import OWN, Ability, Answer, Inquiry, Run, Setup, Task
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.verdicts import Cause, Kind
from draftproof.testing import noisy_copy, random_prompts, tiny_model

from .canned import Canned, answer, inquiry

ROWS, NEW, VOCABULARY, SEED = (3, 11, 19, 6, 8, 14), 40, 1024, 5
OUTSIDE = frozenset({Ability.BATCH, Ability.TOPS, Ability.PROMPTS, Ability.FLOAT32})
Rules = Callable[[Inquiry], Inquiry]


@dataclass(kw_only=True)
class Ruled(FaultyEngine):
    """An engine that ends rows by rules of its own."""

    rules: Rules = lambda asked: asked

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        return super().run(self.rules(inquiry), setup)


class Outside(Ruled):
    """The same, asked as a server can be asked."""

    abilities = OUTSIDE


@cache
def scenario() -> Scenario:
    """Six unlike rows; every second one meets an eos of its own on the way."""
    target = tiny_model("llama", num_hidden_layers=1, vocab_size=VOCABULARY)
    prompts = random_prompts(ROWS, seed=SEED, vocab_size=VOCABULARY)
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    asked = Inquiry(tasks=tasks, max_new_tokens=NEW, eos_token_id=())
    made = Scenario(
        name="mixed", target=target, draft=noisy_copy(target), tokenizer=None, inquiry=asked
    )
    outputs = reference(made).run(asked).ids
    ends = [
        next(t for t in ids[4 + row :] if ids.index(t) >= 4 and _only(outputs, row, t))
        for row, ids in enumerate(outputs)
    ]
    return replace(made, inquiry=replace(asked, eos_token_id=tuple(ends[1::2])))


def _only(outputs: list[tuple[int, ...]], row: int, token: int) -> bool:
    return all(token not in ids for n, ids in enumerate(outputs) if n != row)


def reference(made: Scenario) -> EngineSubject:
    plain = made.reference()
    return replace(plain, dtype="bfloat16", rig=rounding())


def candidate(
    fault: Fault | None, rules: Rules, *, outside: bool = False, dtype: str = "bfloat16"
) -> EngineSubject:
    made = scenario().candidate(fault, dtype=dtype)
    own: dict[str, Any] = {f.name: getattr(made, f.name) for f in fields(made) if f.init}
    own["rig"] = rounding(made.rig)
    return (Outside if outside else Ruled)(**own, rules=rules)


def examined(fault: str | None, rules: Rules, *, outside: bool = False) -> Diagnosis:
    named = None if fault is None else by_name(fault)
    subject = candidate(named, rules, outside=outside)
    return diagnose(
        Lab(reference=reference(scenario()), candidate=subject, inquiry=scenario().inquiry)
    )


# -- rules of ending that differ -------------------------------------------------------------------


def no_eos(asked: Inquiry) -> Inquiry:
    return replace(asked, eos_token_id=())


def one_more(asked: Inquiry) -> Inquiry:
    return replace(asked, max_new_tokens=asked.max_new_tokens + 1)


def one_less(asked: Inquiry) -> Inquiry:
    return replace(asked, max_new_tokens=max(1, asked.max_new_tokens - 1))


def both(asked: Inquiry) -> Inquiry:
    return one_less(no_eos(asked))


DIFFERENT = (no_eos, one_more, one_less, both)


def as_asked(asked: Inquiry) -> Inquiry:
    return asked


def causes(diagnosis: Diagnosis) -> dict[int, Cause]:
    return {row: finding.cause for row, finding in diagnosis.rows.items()}


def ends(diagnosis: Diagnosis) -> set[int]:
    return {fork.row for fork in diagnosis.forks if fork.end}


outside = pytest.mark.parametrize("outside", [False, True], ids=["engine", "outside"])
different = pytest.mark.parametrize("rules", DIFFERENT, ids=lambda rules: rules.__name__)


@outside
def test_near_ties_alone_are_numeric(outside: bool) -> None:
    diagnosis = examined(None, as_asked, outside=outside)
    assert diagnosis.finding.cause is Cause.NUMERIC
    assert len(diagnosis.forks) >= 2


@outside
@different
def test_near_ties_beside_other_rules_of_ending_are_no_bug(rules: Rules, outside: bool) -> None:
    diagnosis = examined(None, rules, outside=outside)
    assert diagnosis.finding.cause is Cause.HARNESS, diagnosis.finding
    found, ended = causes(diagnosis), ends(diagnosis)
    assert ended
    assert {found[row] for row in ended} == {Cause.HARNESS}
    assert {cause for row, cause in found.items() if row not in ended} == {Cause.NUMERIC}
    assert "HARNESS" in diagnosis.finding.reasons[0]
    assert "NUMERIC" in diagnosis.finding.reasons[0]


BUGS = ("position_plus_one", "rollback_too_few", "correction_from_draft", "neighbours_length")


@outside
@pytest.mark.parametrize("fault", BUGS)
@pytest.mark.parametrize("rules", [no_eos, one_more], ids=lambda rules: rules.__name__)
def test_a_bug_beside_other_rules_of_ending_keeps_its_name(
    fault: str, rules: Rules, outside: bool
) -> None:
    diagnosis = examined(fault, rules, outside=outside)
    assert diagnosis.finding.cause is Cause.BUG
    assert diagnosis.finding.kind is by_name(fault).kind, diagnosis.finding
    assert all(diagnosis.rows[row].cause is Cause.HARNESS for row in ends(diagnosis))


@outside
def test_a_bug_at_the_ends_beside_another_limit_is_told_apart(outside: bool) -> None:
    """eos is ignored inside a block, and every row may be one token longer."""
    diagnosis = examined("eos_ignored_in_block", one_more, outside=outside)
    ended = {row: diagnosis.rows[row] for row in ends(diagnosis)}
    by_eos = [finding for row, finding in ended.items() if row % 2]
    by_length = [finding for row, finding in ended.items() if not row % 2]
    assert {finding.kind for finding in by_eos} == {Kind.ENDING}
    assert {finding.cause for finding in by_length} == {Cause.HARNESS}
    assert (diagnosis.finding.cause, diagnosis.finding.kind) == (Cause.BUG, Kind.ENDING)


@outside
@pytest.mark.parametrize("fault", ["eos_ignored_in_block", "length_overshoot"])
def test_a_bug_at_the_ends_beside_near_ties_is_a_bug(fault: str, outside: bool) -> None:
    diagnosis = examined(fault, as_asked, outside=outside)
    assert (diagnosis.finding.cause, diagnosis.finding.kind) == (Cause.BUG, Kind.ENDING)
    found, ended = causes(diagnosis), ends(diagnosis)
    assert Cause.NUMERIC in {found[row] for row in found if row not in ended}


def its_own_limit(asked: Inquiry) -> Inquiry:
    """A server that is told a limit and keeps to its own."""
    return replace(asked, max_new_tokens=NEW + 3)


def one_eos_of_three(asked: Inquiry) -> Inquiry:
    """A server that knows one of the ids that end a row."""
    return replace(asked, eos_token_id=(asked.eos_token_id or ())[:1])


@outside
@pytest.mark.parametrize("rules", [its_own_limit, one_eos_of_three], ids=lambda r: r.__name__)
def test_rules_that_the_settings_do_not_show_are_the_harness(rules: Rules, outside: bool) -> None:
    diagnosis = examined(None, rules, outside=outside)
    assert {diagnosis.rows[row].cause for row in ends(diagnosis)} == {Cause.HARNESS}
    assert diagnosis.finding.cause is Cause.HARNESS


# -- where nothing can be asked --------------------------------------------------------------------

RIGHT = [[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 40], [21, 22, 23, 40], [31, 32, 33, 34]]
BOTH = frozenset({Ability.FLOAT32, Ability.TOPS})


def recorded(wrong: list[list[int]], *, gap: float = 5.0, clean: list[list[int]] | None = None):  # type: ignore[no-untyped-def]
    """RIGHT against `wrong`, with rows that eos 40 ended; `clean`: the candidate in float32."""

    def respond(setup: Setup) -> list[Answer]:
        ids = clean if setup.dtype and clean is not None else wrong
        return [answer(one, gap) for one in ids]

    able = BOTH if clean is not None else frozenset({Ability.TOPS})
    common: dict[str, Any] = {"abilities": able, "dtype": "bfloat16"}
    plain = Canned(respond=lambda setup: [answer(one, gap) for one in RIGHT], k=0, **common)
    asked = replace(inquiry(4), eos_token_id=(40,))
    return diagnose(
        Lab(reference=plain, candidate=Canned(respond=respond, **common), inquiry=asked)
    )


def test_recorded_near_tie_and_missing_eos() -> None:
    """Row 0 forks at a near tie that float32 takes back; rows 1 and 2 go on after their eos."""
    tied = [1, 2, 3, 99, 50, 51, 52, 53]
    late = [[*RIGHT[1], 41, 42, 43], [*RIGHT[2], 41, 42, 43, 44]]
    found = recorded([tied, *late, RIGHT[3]], gap=0.0625, clean=[RIGHT[0], *late, RIGHT[3]])
    assert causes(found) == {0: Cause.NUMERIC, 1: Cause.HARNESS, 2: Cause.HARNESS}
    assert found.finding.cause is Cause.HARNESS


def test_recorded_bug_and_missing_eos() -> None:
    wrong = [1, 2, 3, 99, 50, 51, 52, 53]
    late = [[*RIGHT[1], 41, 42, 43], [*RIGHT[2], 41, 42, 43, 44]]
    found = recorded([wrong, *late, RIGHT[3]])
    assert causes(found) == {0: Cause.BUG, 1: Cause.HARNESS, 2: Cause.HARNESS}
    assert found.finding.cause is Cause.BUG


def test_recorded_eos_rows_that_differ_beside_stop_rows_that_do_not_are_the_harness() -> None:
    """Row 3 ended by a stop string on both sides: it says nothing of rows that eos ended."""
    late = [[*RIGHT[1], 41, 42, 43], [*RIGHT[2], 41, 42, 43, 44]]
    assert recorded([RIGHT[0], *late, RIGHT[3]]).finding.cause is Cause.HARNESS
    # negative control: one of two rows that eos ended is right, and no rule does that
    mixed = recorded([RIGHT[0], late[0], RIGHT[2], RIGHT[3]]).finding
    assert (mixed.cause, mixed.kind) == (Cause.BUG, Kind.ENDING)


def test_a_side_that_contradicts_itself_says_nothing_of_ends_either() -> None:
    calls: list[int] = []

    def fickle(setup: Setup) -> list[Answer]:
        calls.append(1)
        return [answer(ids if len(calls) % 2 else ids[:-1]) for ids in RIGHT]

    asked = inquiry(4)
    plain = Canned(respond=lambda setup: [answer(one[:-1]) for one in RIGHT], k=0)
    found = diagnose(Lab(reference=plain, candidate=Canned(respond=fickle), inquiry=asked)).finding
    assert (found.cause, found.rule) == (Cause.UNDECIDED, "the candidate does not repeat itself")
