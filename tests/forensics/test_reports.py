"""What leaves an examination: JSON, HTML, JUnit, exit codes, policy, bundle, replay."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import InputError
from draftproof.faultlab.faults import Condition, by_name
from draftproof.faultlab.scenarios import Scenario, tiny_scenario
from draftproof.forensics import bundle, junit
from draftproof.forensics.examine import SCHEMA, Controls, Examination, examine
from draftproof.forensics.policy import ExitCode, Policy
from draftproof.forensics.replay import replay, worst_row
from draftproof.forensics.report import WIDTH, margins, percent, render
from draftproof.forensics.subjects.base import Answer
from draftproof.forensics.verdicts import Cause

from .canned import Canned, answer, inquiry

RIGHT = [[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15, 16, 17, 18]]
FORKED = [[1, 2, 3, 99, 50, 51, 52, 53], RIGHT[1]]


def canned(rows: list[list[int]], gap: float = 5.0, **options: Any) -> Canned:
    return Canned(respond=lambda setup: [answer(ids, gap) for ids in rows], **options)


def near_tie() -> Examination:
    from draftproof.forensics.subjects.base import Ability

    tops = frozenset({Ability.TOPS})
    reference = canned(RIGHT, 0.0625, k=0, dtype="bfloat16", abilities=tops)
    return examine(reference, canned(FORKED, abilities=tops), inquiry(2))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Two short rows are enough here."""
    whole = tiny_scenario(Condition.PLAIN)
    asked = replace(whole.inquiry, tasks=whole.inquiry.tasks[:2], max_new_tokens=13)
    return replace(whole, inquiry=asked, batch=2)


@pytest.fixture(scope="module")
def bug(scenario: Scenario) -> Examination:
    """A rollback that leaves one entry too many, examined with every control."""
    return examine(
        scenario.reference(),
        scenario.candidate(by_name("rollback_too_few")),
        scenario.inquiry,
        which=Controls.ALL,
        decode=lambda ids: f"<{ids[0]}>",
    )


def test_the_report_is_json_with_a_versioned_schema(bug: Examination) -> None:
    report = json.loads(json.dumps(bug.as_dict()))
    assert report["schema"] == SCHEMA == "draftproof.forensics/1"
    assert report["verdict"]["kind"] == "stale KV"
    assert report["speculation"]["on"] is True
    assert report["match"]["survival"][0] == 1.0
    assert {line["value"] for line in report["match"]["by_k"]} == {1, 2}
    fork = next(row["fork"] for row in report["rows"] if row["fork"])
    assert fork["block"]["drafted"] == 3
    assert fork["gap"] is not None


def test_the_page_is_one_file_that_needs_nothing(bug: Examination) -> None:
    page = render(bug.as_dict())
    assert not re.search(r"(src|href)\s*=|url\(|@import|<script|<link", page)
    assert "stale KV" in page
    # the candidate's wrong token is in the text, escaped
    assert "&lt;" in page
    assert "<1>" not in page
    for heading in (
        "How long rows stay equal",
        "Gap at the fork",
        "Where rows diverge",
        "Controls",
    ):
        assert heading in page


@pytest.mark.parametrize("gap", [None, 0.0])
def test_the_page_can_do_without_gaps_and_without_rows_that_differ(gap: float | None) -> None:
    rows = RIGHT if gap is None else FORKED
    page = render(examine(canned(RIGHT, 0.0), canned(rows), inquiry(2)).as_dict())
    assert "<svg" in page


def test_percent_says_all_only_of_all() -> None:
    assert (percent(0.9999), percent(1.0), percent(None)) == ("99.9%", "100.0%", "unknown")


# -- exit codes and policy -------------------------------------------------------------------------


def test_exit_codes() -> None:
    exact = examine(canned(RIGHT), canned(RIGHT), inquiry(2))
    wrong = examine(canned(RIGHT), canned(FORKED), inquiry(2))
    unknown = examine(canned(RIGHT, 0.9), canned(FORKED), inquiry(2))
    codes = [one.exit_code for one in (exact, near_tie(), wrong, unknown)]
    assert codes == [0, 0, 1, 3]
    assert near_tie().diagnosis.finding.cause is Cause.NUMERIC


def test_a_policy_can_forbid_what_the_default_passes(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[policy]\nnumeric = false\nmin_exact = 0.9\nrequire_speculation = true\n")
    strict = replace(near_tie(), policy=Policy.read(file))
    assert strict.exit_code is ExitCode.FAILED
    assert strict.broken == [
        "numeric differences are not allowed",
        "exact match 0.500 is below 0.9",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[policy]\nmin_exakt = 1.0\n", "'min_exakt' is not one of"),
        ("[policy]\nmin_exact = true\n", "min_exact must be a float"),
        ("[policy]\nnumeric = 1\n", "numeric must be a bool"),
        ("[policy\n", "policy.toml"),
    ],
)
def test_a_policy_that_says_nothing_known_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        Policy.read(file)


def test_junit_has_a_case_per_row_and_one_for_the_policy() -> None:
    wrong = examine(canned(RIGHT), canned(FORKED), inquiry(2)).as_dict()
    suite = ElementTree.fromstring(junit.render(wrong))
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "2"
    passed = [case.attrib["name"] for case in suite if not len(case)]
    assert passed == ["row 1"]


def test_junit_calls_undecided_an_error_and_lets_numeric_rows_pass() -> None:
    unknown = examine(canned(RIGHT, 0.9), canned(FORKED), inquiry(2)).as_dict()
    suite = ElementTree.fromstring(junit.render(unknown))
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("2", "0")
    suite = ElementTree.fromstring(junit.render(near_tie().as_dict()))
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("0", "0")


# -- bundle and replay -----------------------------------------------------------------------------


def test_a_bundle_reads_back_and_replays_to_the_wrong_round(
    bug: Examination, scenario: Scenario, tmp_path: Path
) -> None:
    bundle.write(bug, tmp_path)
    content = bundle.read(tmp_path)
    assert content.inquiry == bug.lab.inquiry
    assert content.found.ids == bug.lab.found.ids
    row = worst_row(content)
    shown = replay(content, row, scenario.candidate(by_name("rollback_too_few")))
    assert (shown.fresh, shown.reproduced) == (True, True)
    fork = next(fork for fork in bug.diagnosis.forks if fork.row == row)
    assert shown.fork == fork.divergence.position
    assert shown.culprit is not None
    emitted_before = sum(len(step.emitted) for step in shown.steps[: shown.culprit.number])
    assert emitted_before + (shown.culprit.first_wrong or 0) == fork.divergence.position
    top = bundle.top_at(tmp_path, "reference", row, fork.divergence.position)
    assert top is not None
    assert top.ids[0] == fork.divergence.expected


def test_a_replay_with_the_fault_mended_says_that_it_came_out_differently(
    bug: Examination, scenario: Scenario, tmp_path: Path
) -> None:
    bundle.write(bug, tmp_path)
    content = bundle.read(tmp_path)
    shown = replay(content, worst_row(content), scenario.candidate())
    assert (shown.reproduced, shown.fork, shown.culprit) == (False, None, None)


def test_a_replay_without_a_subject_shows_the_transcript(bug: Examination, tmp_path: Path) -> None:
    bundle.write(bug, tmp_path)
    content = bundle.read(tmp_path)
    shown = replay(content, worst_row(content), None)
    assert (shown.fresh, shown.reproduced) == (False, None)
    assert shown.culprit is not None
    with pytest.raises(InputError, match="has no row 77"):
        replay(content, 77, None)


def test_without_a_transcript_the_tokens_themselves_are_replayed(tmp_path: Path) -> None:
    bundle.write(examine(canned(RIGHT), canned(FORKED), inquiry(2)), tmp_path)
    shown = replay(bundle.read(tmp_path), 0, None)
    assert shown.steps == ()
    assert (shown.fork, shown.expected[3], shown.found[3]) == (3, RIGHT[0][3], FORKED[0][3])
    again = replay(bundle.read(tmp_path), 0, canned(RIGHT))
    assert (again.fresh, again.reproduced, again.fork) == (True, False, None)


def test_a_row_that_is_not_answered_again_is_not_called_reproduced(tmp_path: Path) -> None:
    bundle.write(examine(canned(RIGHT), canned(FORKED), inquiry(2)), tmp_path)
    gone = Canned(respond=lambda setup: [Answer(error="timed out")] * 2)
    with pytest.raises(InputError, match="gave no answer: timed out"):
        replay(bundle.read(tmp_path), 0, gone)


def forked(*gaps: float) -> list[dict[str, Any]]:
    return [
        {"index": n, "fork": {"gap": gap}, "verdict": {"cause": "numeric"}}
        for n, gap in enumerate(gaps)
    ]


def test_ties_are_drawn_at_zero_and_the_band_covers_what_it_explains() -> None:
    drawn = margins(forked(0.0, 0.125, 0.5), band=0.3)
    assert drawn is not None
    tie, near, far = (dot["x"] for dot in drawn["dots"])
    assert tie == 0 < near < far < drawn["band"] < WIDTH
    assert drawn["ticks"][0] == {"x": 0.0, "label": "0"}


def test_gaps_far_beyond_the_band_are_drawn_by_decades() -> None:
    drawn = margins(forked(0.0, 0.001, 8.0), band=0.0005)
    assert drawn is not None
    tie, inside, beyond = (dot["x"] for dot in drawn["dots"])
    assert tie == 0 < inside <= drawn["band"] < beyond <= WIDTH
    assert margins(forked(), band=1.0) is None


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no bundle"):
        bundle.read(tmp_path)
    bundle.write(examine(canned(RIGHT), canned(RIGHT), inquiry(2)), tmp_path)
    file = tmp_path / "bundle.json"
    file.write_text(file.read_text().replace(SCHEMA, "draftproof.forensics/99"))
    with pytest.raises(InputError, match="has schema draftproof.forensics/99"):
        bundle.read(tmp_path)
