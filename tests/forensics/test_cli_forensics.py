"""The long form of `draftproof check`, and `draftproof replay`, on the embedded models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.cli import app
from draftproof.faultlab.faults import Condition, by_name
from draftproof.faultlab.scenarios import tiny_scenario
from draftproof.forensics import bundle
from draftproof.forensics.examine import examine

PLAIN = "engine:target=demo,batch=1"
FAST = "engine:target=demo,draft=demo,batch=2,k=3"


def run(*arguments: object, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)


def test_two_specs_are_examined_and_every_report_is_written(tmp_path: Path) -> None:
    done = run(
        *("check", "--reference", PLAIN, "--candidate", FAST),
        *("--prompt", "The list", "--prompt", "A function", "--max-new-tokens", 8),
        *("--json", tmp_path / "r.json", "--html", tmp_path / "r.html"),
        *("--junit", tmp_path / "r.xml", "--bundle", tmp_path / "b"),
    )
    assert done.exit_code == 0, done.output
    assert "EXACT: nothing differs" in done.output
    assert json.loads((tmp_path / "r.json").read_text())["verdict"]["cause"] == "exact"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert "<testsuite" in (tmp_path / "r.xml").read_text()
    again = run("replay", tmp_path / "b", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["reproduced"] is True


def test_notes_of_the_library_come_once_per_side(tmp_path: Path) -> None:
    done = run(
        *("check", "--reference", PLAIN, "--candidate", FAST, "--controls", "all"),
        *("--prompt", "The list", "--prompt", "A function", "--max-new-tokens", 6),
    )
    assert done.exit_code == 0, done.output
    assert done.output.count("weights: target") == 2
    assert done.output.count("KV cache: ") == 2


def test_the_short_form_with_a_report_is_examined(tmp_path: Path) -> None:
    from draftproof.models import demo_paths

    target, draft = demo_paths()
    done = run(
        *("check", "--target", target, "--draft", draft, "--batch-sizes", "1,2"),
        *("--prompt", "The list", "--max-new-tokens", 6, "--html", tmp_path / "r.html"),
    )
    assert done.exit_code == 0, done.output
    assert "batch=2" in (tmp_path / "r.html").read_text()


def test_the_short_form_names_the_executor_on_both_sides() -> None:
    from draftproof.cli.examining import as_question
    from draftproof.cli.options import DecodingOptions, ModelOptions

    settings = {"kv_cache_dtype": "uint8"}
    models = ModelOptions(target="t", draft="d", executor="openvino", executor_options=settings)
    asked = as_question(models, DecodingOptions(), 4, "auto", None)
    for side in (asked.reference, asked.candidate):
        assert "executor=openvino,kv_cache_dtype=uint8" in side
    models = ModelOptions(
        target="t", draft="d", draft_executor="openvino", executor_options=settings
    )
    asked = as_question(models, DecodingOptions(), 4, "auto", None)
    assert "openvino" not in asked.reference
    assert "uint8" not in asked.reference
    assert asked.candidate.endswith("draft_executor=openvino,kv_cache_dtype=uint8")


def test_recorded_ids_that_differ_are_undecided_and_exit_3(tmp_path: Path) -> None:
    for name, ids in (("a", [1, 2]), ("b", [1, 3])):
        (tmp_path / name).write_text(json.dumps({"ids": ids}) + "\n")
    done = run(
        *("check", "--reference", f"file:{tmp_path / 'a'}"),
        *("--candidate", f"file:{tmp_path / 'b'}", "--prompt", "x", "--json", "-"),
    )
    assert done.exit_code == 3
    assert json.loads(done.stdout)["verdict"]["missing"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reference", PLAIN], "give either --target, or --reference with --candidate"),
        (["--target", "x", "--reference", PLAIN, "--candidate", FAST], "give either --target"),
        (["--reference", "x", "--candidate", FAST], "names no subject"),
        (["--reference", PLAIN, "--candidate", FAST, "--controls", "x"], "choose one of auto"),
        (["--reference", PLAIN, "--candidate", FAST, "--policy", "no"], "No such file"),
    ],
)
def test_what_cannot_be_examined_exits_2(arguments: list[str], said: str) -> None:
    done = run("check", *arguments, "--prompt", "x")
    assert done.exit_code == 2
    assert said in done.output


def test_a_replay_shows_the_wrong_round(tmp_path: Path) -> None:
    scenario = tiny_scenario(Condition.PLAIN)
    faulty = scenario.candidate(by_name("correction_from_draft"))
    bundle.write(examine(scenario.reference(), faulty, scenario.inquiry), tmp_path)
    done = run("replay", tmp_path)
    assert done.exit_code == 1
    assert "is the first wrong one" in done.output
    assert "the reference's scores there" in done.output
    assert run("replay", tmp_path / "nothing").exit_code == 2
