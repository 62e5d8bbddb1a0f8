"""The proof in small; `draftproof forensics-selftest` runs all of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from draftproof.errors import InputError, NumericsError
from draftproof.faultlab import selftest, selftest_http
from draftproof.faultlab.faults import FAULTS, Condition, by_name
from draftproof.faultlab.scenarios import Scenario, quick_scenario, tiny_scenario
from draftproof.faultlab.selftest import SelfTest, correct_cases, fault_case
from draftproof.faultlab.selftest_case import Case
from draftproof.faultlab.selftest_tables import BEGIN, END, rewrite
from draftproof.forensics.subjects.base import OWN, Run, Setup
from draftproof.forensics.verdicts import Cause, Kind

# one of each kind of evidence; the others are found by `draftproof forensics-selftest`
SAMPLE = (
    "position_plus_one",
    "mask_shows_padding",
    "rejected_zeroed",
    "draft_cache_off_by_one",
    "correction_from_draft",
    "eos_ignored_in_block",
    "last_index_argmax",
    "speculation_off",
)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return tiny_scenario(Condition.PLAIN)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_gets_its_right_name(name: str) -> None:
    fault = by_name(name)
    case = fault_case(tiny_scenario(fault.condition), fault)
    assert (case.cause, case.found) == (Cause.BUG, fault.kind)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_bites(fault: object) -> None:
    """On its scenario it changes the output, the drafts or the counters: else it proves nothing."""
    named = by_name(getattr(fault, "name", ""))
    scenario = quick_scenario(named.condition)
    right, wrong = (scenario.candidate(one).run(scenario.inquiry) for one in (None, named))
    assert _seen(right) != _seen(wrong)


def _seen(run: Run) -> tuple[object, ...]:
    return run.ids, run.counters, [[one.drafts for one in a.rounds] for a in run.answers]


@pytest.mark.parametrize("name", ["eos_ignored_in_block", "stop_string_overshoot"])
def test_ends_that_follow_the_drafts_are_found_from_outside(name: str) -> None:
    """A block that ends where a draft is wrong ends there from wherever the row is asked again."""
    pytest.importorskip("httpx")
    fault = by_name(name)
    assert selftest_http.fault_case(tiny_scenario(fault.condition), fault).right


def test_what_this_machine_has_not_is_said_and_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise NumericsError("not here")

    monkeypatch.setattr(selftest, "Pair", refuse)
    told: list[str] = []
    assert list(correct_cases(left_out=told.append)) == []
    assert "bfloat16, exact, rows: not here" in " ".join(told)


def test_who_asks_twice_gets_a_second_run_of_the_shared_reference() -> None:
    """Or else the A/A control would compare a run with itself."""
    scenario = quick_scenario(Condition.PLAIN)
    one, other = scenario.reference(), scenario.reference()
    first, second = one.run(scenario.inquiry), one.run(scenario.inquiry)
    assert first is not second
    assert first.ids == second.ids
    assert (other.run(scenario.inquiry), other.run(scenario.inquiry)) == (first, second)
    assert len(scenario.cache.runs[scenario.inquiry, OWN]) == 2


def test_the_stage_itself_is_right(scenario: Scenario) -> None:
    expected = scenario.reference().run(scenario.inquiry)
    assert scenario.candidate().run(scenario.inquiry).ids == expected.ids
    assert scenario.candidate().run(scenario.inquiry, Setup(serial=True)).ids == expected.ids
    assert 0.2 < (scenario.candidate().run(scenario.inquiry).counters.acceptance or 0) < 0.95


def test_a_correct_configuration_raises_no_alarm() -> None:
    assert [t for t in islice(correct_cases(), 8) if not t.right] == []


def test_an_undetected_fault_fails_the_selftest(scenario: Scenario) -> None:
    """Negative control: a fault that does nothing must be reported as missed."""
    harmless = replace(by_name("rejected_zeroed"), rig=None)
    case = fault_case(scenario, harmless)
    assert not case.right
    result = SelfTest(faults=(case,), correct=())
    assert not result.passed
    assert result.matrix == {Kind.STALE_KV: {"exact": 1}}


def test_a_false_alarm_fails_the_selftest(scenario: Scenario) -> None:
    """Negative control: a fault where none is expected is an alarm."""
    case = fault_case(scenario, by_name("rows_exchanged"))
    alarm = replace(case, expected=None)
    assert not SelfTest(faults=(), correct=(alarm,)).passed


def case(name: str, found: Kind | None, cause: Cause = Cause.BUG) -> Case:
    return Case(
        name=name,
        scenario="tiny",
        expected=by_name(name).kind,
        cause=cause,
        found=found,
        rule="r",
        seconds=0.0,
    )


def test_the_page_shows_what_was_confused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    wrong = case("rejected_zeroed", Kind.POSITIONS)
    rewrite(page, SelfTest(faults=(case("position_plus_one", Kind.POSITIONS), wrong), correct=()))
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "**positions**, not stale KV" in text
    assert "| 2 stale KV | 1 | · |" in text


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here", encoding="utf-8")
    with pytest.raises(InputError, match="expected one"):
        rewrite(page, SelfTest(faults=(), correct=()))


def test_at_least_sixteen_faults_of_every_kind_that_can_be_injected() -> None:
    assert len(FAULTS) >= 16
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    with pytest.raises(KeyError, match="no fault"):
        by_name("nonsense")
