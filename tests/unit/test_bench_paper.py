"""The whole path of `draftproof bench paper` on tiny models, and what it does when a run fails."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftproof import Pair
from draftproof.bench.paper import Paper, Step
from draftproof.bench.results import Results
from draftproof.bench.runner import Runner
from draftproof.bench.settings import Settings
from draftproof.bench.tables import Table, tables
from draftproof.bench.workloads import built_in
from draftproof.cli import app
from draftproof.engine.methods import Method
from draftproof.testing import tiny_model, tiny_tokenizer

VOCABULARY = 320
MINI = Settings(
    ways=("plain", "rows", "eqspec", "exspec", "bsp"),
    batch_sizes=(1, 3),
    k=2,
    num_prompts=3,
    max_new_tokens=6,
    max_input_len=20,
    window_sizes=(4,),
    length=10,
    serving_batch_sizes=(2,),
    contexts=(12,),
    realignment_batch_sizes=(1, 3),
    realignment_tokens=3,
)


@torch.no_grad()
def disturb(model: Any) -> None:
    """A draft that is right now and then."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_(noise * parameter.std().nan_to_num() * 0.15)


@dataclass
class TinyModels:
    """A random pair of one architecture; fails on demand."""

    architecture: str
    device: torch.device = torch.device("cpu")
    broken: set[str] = field(default_factory=set)
    pairs: dict[Any, Pair] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = tiny_model(self.architecture, vocab_size=VOCABULARY)
        self.draft = tiny_model(self.architecture, vocab_size=VOCABULARY)
        disturb(self.draft)
        self.tokenizer = tiny_tokenizer()

    def pair(self, dtype: str, numerics: str, method: Method) -> Pair:
        if method.name in self.broken:
            raise RuntimeError("the device fell off")
        key = (numerics, method)
        if key not in self.pairs:
            self.pairs[key] = Pair(
                self.target, self.draft, tokenizer=self.tokenizer, numerics=numerics, method=method
            )
        return self.pairs[key]


def paper(models: TinyModels, folder: Path, settings: Settings = MINI, **options: Any) -> Paper:
    runner = Runner(
        models=models,
        questions=built_in(settings.num_prompts),
        max_input_len=settings.max_input_len,
        repeats=settings.repeats,
        debug=True,
    )
    names = {"target": models.architecture, "draft": "random"}
    return Paper(settings=settings, runner=runner, models=names, folder=folder, **options)


def named(made: list[Table]) -> Mapping[str, Table]:
    return {table.name: table for table in made}


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "glm4"])
def test_the_three_architectures_run_the_whole_path(architecture: str, tmp_path: Path) -> None:
    """Vicuna is a Llama; the others are themselves. Float32: the correct methods match in full."""
    records = paper(TinyModels(architecture), tmp_path).run()
    assert {record["status"] for record in records} == {"ok"}
    made = named(tables(Results(records)))
    assert set(made) == {
        "match",
        "categories",
        "throughput",
        "shares",
        "acceptance",
        "windows",
        "serving",
        "realignment",
    }
    exact = {(row[2], row[3]): row[4] for row in made["match"].rows}
    for way in ("plain", "rows", "eqspec", "exspec"):
        assert (exact[way, "1"], exact[way, "3"]) == ("3/3", "3/3")
    assert exact["bsp", "3"] != "3/3"
    for name in ("report.md", "report.html"):
        text = html.unescape((tmp_path / name).read_text())
        assert all(table.title in text for table in made.values() if not table.wide)
    assert text.count("<svg") == 8
    assert not re.search(r'(src|href)="http', text)  # one file, no network


def test_shares_add_up_and_rows_are_never_realigned(tmp_path: Path) -> None:
    settings = Settings(
        ways=("rows", "eqspec"), batch_sizes=(3,), k=2, num_prompts=3, max_new_tokens=6,
        sections=("grid",),
    )  # fmt: skip
    records = paper(TinyModels("llama"), tmp_path, settings).run()
    for record in records:
        line = record["timeline"]
        assert sum(line["parts"].values()) == pytest.approx(line["decode"])
        assert line["decode"] <= line["busy"] <= line["clock"]
        assert record["tokens"] == 18
    drafted = [r["stats"]["draft_acceptance_rate"] for r in records if r["cell"]["way"] != "plain"]
    assert all(0.1 < rate < 0.9 for rate in drafted)
    moved = {r["cell"]["way"]: r["realigned"].get("bytes", 0) for r in records}
    assert moved["rows"] == moved["plain"] == 0
    assert moved["eqspec"] > 0


def test_a_second_call_runs_nothing_again(tmp_path: Path) -> None:
    models, steps = TinyModels("llama"), list[Step]()
    settings = Settings(
        ways=("rows",), batch_sizes=(1, 2), num_prompts=2, max_new_tokens=3, sections=("grid",)
    )
    first = paper(models, tmp_path, settings, on_step=steps.append).run()
    assert [step.cell is None for step in steps] == [False, False, False, True]
    assert steps[0].seconds_left is None
    assert steps[1].seconds_left is not None
    steps.clear()
    assert paper(models, tmp_path, settings, on_step=steps.append).run() == first
    assert [step.cell for step in steps] == [None]


def test_a_crash_is_recorded_as_a_crash_and_tried_again(tmp_path: Path) -> None:
    settings = Settings(
        ways=("rows", "eqspec"), batch_sizes=(2,), num_prompts=2, max_new_tokens=3,
        sections=("grid",),
    )  # fmt: skip
    models = TinyModels("llama", broken={"eqspec"})
    records = paper(models, tmp_path, settings).run()
    made = named(tables(Results(records)))
    assert [row[2] for row in made["match"].rows] == ["plain", "rows"]
    assert made["problems"].rows[0][3] == "eqspec"
    assert "the device fell off" in made["problems"].rows[0][-1]
    models.broken.clear()
    records = paper(models, tmp_path, settings).run()
    assert [record["status"] for record in records] == ["ok", "ok", "ok"]
    assert "problems" not in named(tables(Results(records)))


def test_what_cannot_run_is_refused_and_not_tried_again(tmp_path: Path) -> None:
    settings = Settings(
        ways=("eqspec",), batch_sizes=(2,), num_prompts=2, max_new_tokens=3, sections=("shares",),
        numerics=("exact",),
    )  # fmt: skip
    (record,) = paper(TinyModels("llama"), tmp_path, settings).run()
    assert record["status"] == "refused"
    assert "numerics='exact' needs method='rows'" in record["error"]


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp(f"model{seed}")
        tiny_model("llama", seed=seed, vocab_size=VOCABULARY).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        made.append(str(folder))
    return made[0], made[1]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "paper", *arguments])


def test_the_papers_own_flags(folders: tuple[str, str], tmp_path: Path) -> None:
    questions = tmp_path / "question.jsonl"
    rows = [{"question_id": n, "category": "qa", "turns": [f"Question {n}?"]} for n in range(4)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {
        "--target_model": folders[0],
        "--draft_model": folders[1],
        "--input_file": str(questions),
        "--num_prompts": "4",
        "--max_new_tokens": "3",
        "--n_draft_tokens": "2",
        "--batch_size": "2",
        "--window_size": "3",
        "--scheduling_strategy": "cross_batch",
        "--output_dir": str(tmp_path / "out"),
        "--max_input_len": "8",
        "--section": "grid",
    }
    words = [word for pair in flags.items() for word in pair]
    result = invoke(*words, "--sort_by_length", "--enable_profiling", "--json")
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    cells = [json.loads(line)["cell"] for line in lines]
    assert {cell["section"] for cell in cells} == {"grid", "shares"}
    exspec = next(cell for cell in cells if cell["way"] == "exspec")
    assert exspec["method_options"]["window_size"] == 3
    assert exspec["method_options"]["sort_by_length"] is True
    assert (exspec["k"], exspec["batch_size"], exspec["num_prompts"]) == (2, 2, 4)


@pytest.mark.parametrize(
    ("pair", "target"),
    [
        ("vicuna", "lmsys/vicuna-7b-v1.3"),
        ("qwen3", "Qwen/Qwen3-8B"),
        ("glm4", "zai-org/GLM-4-9B-0414"),
    ],
)
def test_a_dry_run_of_a_preset_needs_no_weights(pair: str, target: str) -> None:
    result = invoke("--pair", pair, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["target"] == target
    assert (plan["settings"]["k"], plan["settings"]["num_prompts"]) == (5, 480)
    assert 13e9 < plan["weight_bytes"] < 22e9  # 7 to 10 billion parameters of 16 bits
    assert plan["kv_bytes"] > 1e9
    assert 600 < plan["seconds"] < 1e6
    assert "Plan" in invoke("--pair", pair, "--dry-run").stdout


def test_a_dry_run_reads_local_folders(folders: tuple[str, str]) -> None:
    result = invoke("--target", folders[0], "--draft", folders[1], "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert plan["weight_bytes"] > 1000
    assert any("exspec" in label for label in plan["runs"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "qwen3"], "480 prompts wanted, 12 there"),
        (["--target", "x"], "give both --target and --draft"),
        (["--methods", "rows,vllm"], "'vllm' is none of"),
        (["--batch-sizes", "1,two"], "whole numbers"),
        (["--methods", "rows", "--scheduling_strategy", "batch"], "not both"),
        (["--policy", "youngest"], "policy='youngest'"),
        (["--target", "no/such", "--draft", "no/such", "--dry-run"], "downloads nothing"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
