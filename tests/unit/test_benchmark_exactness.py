"""benchmarks/exactness.py on the embedded pair: what it counts, and that it can be resumed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftproof.bench.journal import Journal
from draftproof.models import demo_paths

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "exactness.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exactness", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "question.jsonl"
    texts = [f"A list of {n} objects is" for n in range(50)]
    path.write_text("".join(json.dumps({"turns": [text, "And?"]}) + "\n" for text in texts))
    return path


def bench(script: ModuleType, questions: Path, output: Path, *more: str) -> Any:
    target, draft = demo_paths()
    words = [str(target.parent), "--target", target.name, "--draft", draft.name]
    words += ["--input", str(questions), "--prompts", "2", "--max-new-tokens", "6"]
    words += ["--batch-sizes", "1,2", "--num-speculative-tokens", "3", "--threads", "1"]
    return script.Bench(script.parse([*words, *more]), Journal(output))


@pytest.fixture(scope="module")
def records(
    script: ModuleType, questions: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    output = tmp_path_factory.mktemp("output") / "cells.jsonl"
    costs = ("--cost", "--cost-batch-sizes", "2", "--cost-repeats", "1", "--cost-prompts", "2")
    bench(script, questions, output, *costs).run()
    return Journal(output).records()


def test_the_questions_are_those_of_the_selection(
    script: ModuleType, questions: Path, tmp_path: Path
) -> None:
    made = bench(script, questions, tmp_path / "none.jsonl")
    tokenizer = script.load_tokenizer(str(demo_paths()[0]))
    assert [tokenizer.decode(ids) for ids in made.prompts] == [
        "A list of 7 objects is",
        "A list of 27 objects is",
    ]


def test_the_exact_tier_matches_every_bit(records: list[dict[str, Any]]) -> None:
    cells = [r for r in records if r["mode"] == "speculative" and r["numerics"] == "exact"]
    assert [cell["batch_size"] for cell in cells] == [1, 2]
    for cell in cells:
        assert set(cell["matches"]) == {"generate", "plain"}
        assert all(match == {"ids": 2, "logits": 2} for match in cell["matches"].values())
        assert all(len(row["ids"]) == len(row["logits"]) == 6 for row in cell["rows"])


def test_the_table_shows_every_cell(script: ModuleType, records: list[dict[str, Any]]) -> None:
    text = script.report(records)
    assert "| exact | generate | 3 | 2 of 2, logits 2 | 2 of 2, logits 2 |" in text
    assert "| exact against fast, wall: K | B = 2 |" in text
    assert text.count("| fast | ") == 2


def test_a_difference_is_counted(
    script: ModuleType, questions: Path, tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    """One token of one reference changed, one bit of another's logits: not 2 of 2 any more."""
    output = tmp_path / "cells.jsonl"
    for record in records:
        if record["numerics"] == "exact" and record["mode"] in ("generate", "plain"):
            rows = json.loads(json.dumps(record["rows"]))
            if record["mode"] == "generate":
                rows[1]["ids"][-1] += 1
            else:
                rows[0]["logits"][2] = "other"
            Journal(output).append(record | {"rows": rows})
    bench(script, questions, output, "--numerics", "exact").run()
    cells = [r for r in Journal(output).records() if r["mode"] == "speculative"]
    assert len(cells) == 2
    for cell in cells:
        assert cell["matches"]["generate"] == {"ids": 1, "logits": 2}
        assert cell["matches"]["plain"] == {"ids": 2, "logits": 1}


def test_finished_cells_are_skipped(
    script: ModuleType,
    questions: Path,
    tmp_path: Path,
    records: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "cells.jsonl"
    for record in records:
        if (record["numerics"], record["batch_size"]) != ("fast", 2):
            Journal(output).append(record)
    again = bench(script, questions, output)
    ran: list[Any] = []
    decoded = again._decoded
    monkeypatch.setattr(again, "_decoded", lambda *cell: ran.append(cell) or decoded(*cell))
    monkeypatch.setattr(again, "_generated", ran.append)
    again.run()
    assert ran == [("fast", 2, 3)]
    assert len(Journal(output).records()) == len(records)
