"""Generated faults in small; `draftproof forensics-selftest --generated N` draws many."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.cli import app
from draftproof.engine.events import RowRound
from draftproof.faultlab.generated.cases import (
    GeneratedCase,
    Vantage,
    correct_case,
    faulty_case,
)
from draftproof.faultlab.generated.circumstances import Circumstance, Moment, When
from draftproof.faultlab.generated.operators import HELD_OUT, OPERATORS, halves
from draftproof.faultlab.generated.report import (
    Examined,
    GeneratedReport,
    Half,
    Outcome,
    examined,
    generated,
    judged,
)
from draftproof.faultlab.generated.seam import Injection, Placed
from draftproof.faultlab.generated.tables import BEGIN, END, rewrite
from draftproof.forensics.verdicts import Cause, Finding, Kind

BY_NAME = {operator.name: operator for operator in OPERATORS}
SEED = 0


@cache
def drawn(name: str) -> GeneratedCase | None:
    return faulty_case(0, SEED, (BY_NAME[name],))


def case(name: str, **changes: Any) -> GeneratedCase:
    found = drawn(name)
    assert found is not None
    return replace(found, **changes)


# -- the operators ---------------------------------------------------------------------------------


def test_half_of_the_operators_is_held_out_by_a_fixed_rule() -> None:
    shown, hidden = halves()
    assert abs(len(shown) - len(hidden)) <= 1
    assert {one.name for one in hidden} == HELD_OUT
    assert not {one.name for one in shown} & HELD_OUT
    assert len({one.name for one in OPERATORS}) == len(OPERATORS) >= 60
    families = {one.family for one in OPERATORS}
    assert families - {one.family for one in shown} == families - {one.family for one in hidden}


def test_every_operator_has_right_names_and_all_of_them_exist() -> None:
    known = {kind.value for kind in Kind} | {Cause.HARNESS.value}
    for operator in OPERATORS:
        assert operator.right | operator.useful <= known, operator.name
        assert operator.right, operator.name
        assert operator.whens, operator.name
        assert not operator.right & {"exact", "numeric", "undecided"}, operator.name


@pytest.mark.parametrize("name", sorted(BY_NAME)[::20])
def test_an_operator_bites(name: str) -> None:
    """Outputs are others than the correct engine's, and others than the reference's in float32."""
    found = faulty_case(0, SEED, (BY_NAME[name],))
    assert found is not None
    assert found.operators == (BY_NAME[name],)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_operator_bites(name: str) -> None:
    assert faulty_case(0, SEED, (BY_NAME[name],)) is not None


def test_what_does_nothing_does_not_bite() -> None:
    """Negative control: the check asks whether outputs differ, not whether a fault was put in."""
    found = case("shifted")
    idle = Placed(injection=Injection(before=lambda one, places: None), circumstance=Circumstance())
    assert found.bites()
    assert not replace(found, placed=(idle,)).bites()


def test_a_seed_gives_the_same_case_again() -> None:
    first, second = (faulty_case(5, 7, (BY_NAME["zeroed"],)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.settings, first.inquiry) == (second.settings, second.inquiry)
    runs = [one.candidate().run(one.inquiry).ids for one in (first, second)]
    assert runs[0] == runs[1]


# -- circumstances ---------------------------------------------------------------------------------


def moment(*, drafts: int = 0, accepted: int = 0, **changes: Any) -> Moment:
    last = RowRound(
        index=0,
        slot=0,
        kv_len=8,
        fed=1 + drafts,
        drafts=(5,) * drafts,
        target_ids=(6,) * (drafts + 1),
        accepted=accepted,
        emitted=(6,) * (accepted + 1),
        finish_reason=None,
    )
    return Moment(**{"start": 9, "count": 1, "token": 6, "decoding": True, "last": last, **changes})


@pytest.mark.parametrize(
    ("when", "yes", "no"),
    [
        (When.ALWAYS, moment(), moment(decoding=False)),
        (When.AFTER_REJECTION, moment(drafts=3, accepted=1), moment(drafts=3, accepted=3)),
        (When.AFTER_ACCEPTANCE, moment(drafts=3, accepted=3), moment()),
        (When.NEIGHBOUR_ENDED, moment(ended=True), moment()),
        (When.UNEQUAL_K, moment(unequal=True), moment()),
        (When.BEYOND_LENGTH, moment(start=10), moment(start=9)),
        (When.PREFIX_REUSE, moment(copied=True), moment()),
        (When.TOKEN_ID, moment(token=7), moment()),
    ],
    ids=lambda one: getattr(one, "value", None),
)
def test_a_circumstance_holds_where_it_should(when: When, yes: Moment, no: Moment) -> None:
    circumstance = Circumstance(when=when, length=10, tokens=frozenset({7}))
    assert circumstance.holds(yes)
    assert not circumstance.holds(no)


def test_one_in_n_is_about_one_in_n_and_repeats_itself() -> None:
    circumstance = Circumstance(when=When.ONE_IN_N, one_in=4)
    hits = [circumstance.holds(moment(start=n)) for n in range(400)]
    assert 60 < sum(hits) < 140
    assert hits == [circumstance.holds(moment(start=n)) for n in range(400)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "when"),
    [("shifted", When.UNEQUAL_K), ("zeroed", When.PREFIX_REUSE), ("zeroed", When.NEIGHBOUR_ENDED)],
)
def test_circumstances_occur_in_what_is_drawn(name: str, when: When) -> None:
    only = replace(BY_NAME[name], whens=(when,))
    assert faulty_case(0, SEED, (only,)) is not None


# -- verdicts on verdicts --------------------------------------------------------------------------


def bug(kind: Kind) -> Finding:
    return Finding(cause=Cause.BUG, rule="r", kind=kind)


@pytest.mark.parametrize(
    ("finding", "outcome"),
    [
        (bug(Kind.STALE_KV), Outcome.RIGHT),
        (bug(Kind.UNKNOWN), Outcome.USEFUL),
        (bug(Kind.TIES), Outcome.MISLEADING),
        (Finding(cause=Cause.UNDECIDED, rule="r"), Outcome.UNDECIDED),
        (Finding(cause=Cause.NUMERIC, rule="r"), Outcome.MISLEADING),
        (Finding(cause=Cause.EXACT, rule="r"), Outcome.MISLEADING),
        (Finding(cause=Cause.HARNESS, rule="r"), Outcome.MISLEADING),
    ],
)
def test_verdicts_are_judged_by_what_the_operator_says(finding: Finding, outcome: Outcome) -> None:
    assert judged(case("zeroed"), finding) is outcome


@pytest.mark.parametrize(
    ("candidates", "outcome"),
    [
        ((Kind.POSITIONS, Kind.STALE_KV), Outcome.USEFUL),
        ((), Outcome.USEFUL),
        ((Kind.POSITIONS, Kind.TIES), Outcome.MISLEADING),
    ],
)
def test_candidates_must_hold_the_right_kind(
    candidates: tuple[Kind, ...], outcome: Outcome
) -> None:
    finding: Any = SimpleNamespace(cause=Cause.BUG, kind=Kind.UNKNOWN, candidates=candidates)
    assert judged(case("zeroed"), finding) is outcome


def test_a_circumstance_makes_its_own_name_useful_and_no_other() -> None:
    placed = Placed(injection=Injection(), circumstance=Circumstance(when=When.AFTER_REJECTION))
    found = case("scaled_queries", placed=(placed,))
    assert judged(found, bug(Kind.STALE_KV)) is Outcome.USEFUL
    always = Placed(injection=Injection(), circumstance=Circumstance())
    assert judged(replace(found, placed=(always,)), bug(Kind.STALE_KV)) is Outcome.MISLEADING


# -- the whole -------------------------------------------------------------------------------------


@pytest.mark.parametrize("vantage", [Vantage.FILE, Vantage.LLAMA])
def test_a_fault_is_examined_from_every_vantage_point(vantage: Vantage) -> None:
    if vantage not in (Vantage.ENGINE, Vantage.FILE):
        pytest.importorskip("httpx")
    one = examined(case("rotated", vantage=vantage, dtype="float32"), Half.OPEN)
    # outputs alone may leave several kinds standing; a wrong one is never named
    allowed = {Outcome.RIGHT, Outcome.USEFUL, Outcome.UNDECIDED}
    assert one.outcome in (allowed if vantage is Vantage.FILE else {Outcome.RIGHT}), one


def test_correct_configurations_raise_no_alarm() -> None:
    pytest.importorskip("httpx")
    every = (correct_case(number, SEED) for number in range(60))
    chosen = [one for one in every if one.dtype == "bfloat16" and one.method == "rows"][:2]
    found = [examined(one, Half.CORRECT) for one in chosen]
    assert not any(one.alarm for one in found)
    assert any(one.forked for one in found)


@pytest.mark.slow
def test_many_correct_configurations_raise_no_alarm() -> None:
    pytest.importorskip("httpx")
    assert generated(1, SEED, correct=40).alarms == []


def test_correct_configurations_differ_in_all_that_may_differ() -> None:
    every = [correct_case(number, SEED).settings for number in range(60)]
    for key, least in (("dtype", 3), ("architecture", 5), ("vantage", 5), ("method", 4), ("k", 4)):
        assert len({one[key] for one in every}) >= least, key
    assert {one["reference"] for one in every} == {"engine", "transformers"}


def test_what_is_held_out_is_counted_and_not_shown(tmp_path: Any) -> None:
    arguments = ["forensics-selftest", "--generated", "1", "--seed", "1", "--held-out"]
    done = CliRunner().invoke(app, [*arguments, "--correct", "0", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    faults = told["faults"]
    assert set(faults) == {"open half", "held-out half"}
    assert faults["held-out half"]["cases"] == 1
    shown = {name for one in told["open_cases"] for name in one["operators"]}
    assert not shown & HELD_OUT
    assert not any(name in done.output for name in HELD_OUT)


@pytest.mark.parametrize(
    "arguments", [["--held-out"], ["--correct", "3"], ["--quick", "--generated", "2"]]
)
def test_options_that_do_nothing_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["forensics-selftest", *arguments])
    assert done.exit_code == 2
    assert "--generated N" in done.output


def test_the_page_shows_counts_and_operators(tmp_path: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nreplaced\n{END}\nafter\n", encoding="utf-8")
    one = Examined(
        half=Half.OPEN,
        settings={"vantage": "file"},
        cause=Cause.BUG,
        verdict="stale KV",
        rule="r",
        outcome=Outcome.MISLEADING,
        forked=True,
        seconds=1.0,
    )
    rewrite(page, GeneratedReport(seed=1, examined=(one,), harmless={}))
    text = page.read_text(encoding="utf-8")
    assert "replaced" not in text
    assert "| open half | 1 | 0 (0%) | 0 (0%) | 0 (0%) | 1 (100%) |" in text
    assert all(f"`{operator.name}`" in text for operator in OPERATORS)
