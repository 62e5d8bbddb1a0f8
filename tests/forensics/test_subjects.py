"""Subjects: transformers, files, SPECs."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.errors import InputError
from draftproof.faultlab.faults import Condition
from draftproof.faultlab.scenarios import Scenario, tiny_scenario
from draftproof.forensics.diagnose import diagnose
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.assisted import TransformersSubject
from draftproof.forensics.subjects.base import OWN, Ability, Setup
from draftproof.forensics.subjects.dialects import OpenAI, Vllm
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.file import FileSubject
from draftproof.forensics.subjects.http import HttpSubject
from draftproof.forensics.subjects.spec import parse
from draftproof.forensics.verdicts import Cause

from .canned import inquiry


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return tiny_scenario(Condition.EOS)


def test_generate_and_the_engine_agree_and_both_show_their_scores(scenario: Scenario) -> None:
    theirs = TransformersSubject(name="hf", target=scenario.target, batch=1)
    lab = Lab(reference=theirs, candidate=scenario.candidate(), inquiry=scenario.inquiry)
    assert diagnose(lab).finding.cause is Cause.EXACT
    first = lab.expected.answers[0]
    assert [top.ids[0] for top in first.tops] == list(first.ids)
    assert lab.found.answers[0].tops[0].ids == first.tops[0].ids


def test_generate_in_a_batch_gives_rows_without_padding(scenario: Scenario) -> None:
    alone = TransformersSubject(name="hf", target=scenario.target).run(scenario.inquiry)
    batched = TransformersSubject(name="hf", target=scenario.target, batch=4).run(scenario.inquiry)
    assert alone.ids == batched.ids


def test_assisted_generation_is_a_subject_too(scenario: Scenario) -> None:
    assisted = TransformersSubject(name="hf", target=scenario.target, assistant=scenario.draft, k=3)
    run = assisted.run(scenario.inquiry)
    assert run.ids == scenario.reference().run(scenario.inquiry).ids
    assert run.counters.speculating is True
    assert assisted.run(scenario.inquiry, Setup(k=0)).counters.speculating is False


def test_the_float32_control_leaves_the_model_itself_alone(scenario: Scenario) -> None:
    side = EngineSubject(name="x", target=scenario.target, batch=1, k=0)
    before = scenario.target.dtype
    side.run(scenario.inquiry, Setup(dtype="bfloat16"))
    assert scenario.target.dtype == before


def test_an_engine_that_refuses_gives_every_row_the_reason(scenario: Scenario) -> None:
    asked = inquiry(2)
    bad = EngineSubject(name="x", target=scenario.target, draft="nonsense")
    assert all("nonsense" in (a.error or "") for a in bad.run(asked).answers)


# -- files -----------------------------------------------------------------------------------------


def test_a_file_of_ids_is_a_subject_that_can_be_asked_nothing_new(tmp_path: Path) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"ids": [1, 2]}\n\n{"token_ids": [3], "finish_reason": "eos"}\n')
    side = FileSubject(name="f", path=file)
    assert side.run(inquiry(2)).ids == [(1, 2), (3,)]
    assert side.abilities == frozenset()
    wrong = side.run(inquiry(3), OWN)
    assert all("one expected per prompt" in (a.error or "") for a in wrong.answers)


@pytest.mark.parametrize("line", ["{}", "[1]", '{"ids": "x"}', "nothing"])
def test_a_line_of_another_shape_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"ids": [1]}\n' + line + "\n")
    with pytest.raises(InputError, match="line 2"):
        FileSubject(name="f", path=file)


def test_two_files_are_compared_and_what_is_missing_is_named(tmp_path: Path) -> None:
    for name, ids in (("a", "[1, 2, 3]"), ("b", "[1, 9, 3]")):
        (tmp_path / name).write_text(f'{{"ids": {ids}}}\n')
    sides = [FileSubject(name=name, path=tmp_path / name) for name in ("a", "b")]
    found = diagnose(Lab(reference=sides[0], candidate=sides[1], inquiry=inquiry(1))).finding
    assert found.cause is Cause.UNDECIDED
    assert any("scores" in one for one in found.missing)


# -- SPECs -----------------------------------------------------------------------------------------


def test_a_spec_names_our_engine() -> None:
    side = parse("engine:target=demo,draft=demo,batch=3,k=2,dtype=float32")
    assert isinstance(side, EngineSubject)
    assert (side.batch, side.k, str(side.target.dtype)) == (3, 2, "torch.float32")
    assert side.abilities == frozenset(Ability) - {Ability.SCORES}
    assert parse("engine:target=demo").k == 0


def test_a_spec_names_an_executor() -> None:
    side = parse(
        "engine:target=demo,draft=demo,executor=openvino,draft_executor=torch,num_threads=2"
    )
    assert isinstance(side, EngineSubject)
    assert side.options == {
        "executor": "openvino",
        "draft_executor": "torch",
        "executor_options": {"num_threads": 2},
    }


def test_a_spec_names_transformers() -> None:
    side = parse("transformers:target=demo,assistant=demo,attention=eager")
    assert isinstance(side, TransformersSubject)
    assert side.settings()["attention"] == "eager"


def test_a_spec_names_a_server() -> None:
    side = parse("http://127.0.0.1:8000/base/?kind=vllm&k=4&batch=2&timeout=9&model=m&requests=5")
    assert isinstance(side, HttpSubject)
    assert isinstance(side.dialect, Vllm)
    assert (side.url, side.k, side.batch, side.timeout) == ("http://127.0.0.1:8000/base", 4, 2, 9.0)
    assert (side.served, side.budget.requests) == ("m", 5)


def test_a_text_server_says_what_was_compared() -> None:
    side = parse("http://127.0.0.1:8000")
    assert isinstance(side, HttpSubject)
    assert isinstance(side.dialect, OpenAI)
    assert "characters were compared" in side.settings()["note"]
    with_tokenizer = parse("http://127.0.0.1:8000?tokenizer=demo")
    assert "made into tokens again" in with_tokenizer.settings()["note"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", "names no subject"),
        ("magic:x=1", "names no subject"),
        ("engine:draft=demo", "needs target=FOLDER"),
        ("engine:target=demo,size=3", "'size=3' is not one of"),
        ("engine:target=demo,batch=0", "whole number from 1"),
        ("engine:target=demo,num_threads=0", "whole number from 1"),
        ("transformers:target=demo,assistant=demo,batch=2", "one row at a time"),
        ("file:nowhere.jsonl", "no such file"),
        ("http://x?kind=magic", "choose one of vllm"),
        ("http://x?api_key=secret", "api_key: a server takes"),
    ],
)
def test_a_spec_that_says_nothing_known_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse(spec)
