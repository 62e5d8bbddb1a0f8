"""`bench throughput` and `bench scaling`: the grid, the peers' processes, the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.bench import peers as bench_peers
from draftproof.bench.peers import Peers, peer_questions
from draftproof.bench.throughput import Grid
from draftproof.cli import app
from draftproof.cli.options import drafts_or_auto
from draftproof.errors import InputError

LINE = {"peer": "transformers", "mode": "plain", "batch": 1, "k": 0, "tok_per_s": 5.0}


def script(folder: Path, name: str, text: str) -> None:
    (folder / f"run_{name}.py").write_text(text, encoding="utf-8")


def peers(folder: Path, **pythons: str) -> Peers:
    return Peers(folder=folder, home=folder, max_new_tokens=7, threads=1, pythons=pythons)


def test_the_grid_measures_plain_decoding_first() -> None:
    cells = list(Grid(batch_sizes=(2,), drafts=("auto", 3), numerics=("exact", "fast")).cells())
    found = [(cell.way, cell.drafted, cell.auto, cell.numerics) for cell in cells]
    assert found == [
        ("plain", 0, False, "exact"),
        ("plain", 0, False, "fast"),
        ("rows", 8, True, "exact"),
        ("rows", 8, True, "fast"),
        ("rows", 3, False, "exact"),
        ("rows", 3, False, "fast"),
    ]
    assert len({cell.key({}) for cell in cells}) == len(cells)


def test_a_batch_is_never_larger_than_its_prompts() -> None:
    grid = Grid(batch_sizes=(1, 64), drafts=(4,), numerics=("fast",), num_prompts=12)
    assert [cell.num_prompts for cell in grid.cells()] == [12, 12, 64, 64]


def test_a_peers_lines_are_read_and_its_memory_is_seen(tmp_path: Path) -> None:
    text = f"import sys\nprint('loading', sys.argv[2])\nprint('{json.dumps(LINE)}')\n"
    script(tmp_path, "transformers", text)
    told: list[str] = []
    (line,) = peers(tmp_path).run(told.append)
    assert {k: v for k, v in line.items() if k != "peak_mib"} == LINE
    assert line["peak_mib"] is None or line["peak_mib"] >= 0  # it may end before it is looked at
    assert told == ["transformers"]


def test_a_peers_peak_is_that_of_its_own_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer holds 60 MiB, lets go of them when it was seen, and ends after that."""
    seen = tmp_path / "seen"
    text = (
        "import pathlib, time\n"
        "block = bytearray(60 << 20)\n"
        f"while not pathlib.Path({str(seen)!r}).exists():\n    time.sleep(0.01)\n"
        f"del block\nprint('{json.dumps(LINE)}')\n"
    )
    script(tmp_path, "transformers", text)
    own = bench_peers._high_water

    def noting(pid: int) -> int:
        found = own(pid)
        if found > 60 * 1024:
            seen.touch()
        return found

    monkeypatch.setattr(bench_peers, "_high_water", noting)
    (line,) = peers(tmp_path).run(lambda text: None)
    assert 60 <= line["peak_mib"] < 200


def test_a_peer_that_fails_says_why(tmp_path: Path) -> None:
    script(tmp_path, "transformers", "raise SystemExit('no such model')")
    (line,) = peers(tmp_path).run(lambda text: None)
    assert line == {"peer": "transformers", "mode": "", "error": "no such model"}


def test_unknown_and_missing_peers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="peer nobody"):
        list(peers(tmp_path, nobody="python").run(lambda text: None))
    with pytest.raises(InputError, match="no such script"):
        list(peers(tmp_path).run(lambda text: None))


def test_the_peers_prompts(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    rows = [{"question_id": n, "category": "all", "turns": [str(n)]} for n in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert [question.number for question in peer_questions(file, 3)] == [7, 27, 47]
    with pytest.raises(InputError, match="there are 3"):
        peer_questions(file, 4)


@pytest.mark.parametrize(("word", "value"), [("auto", "auto"), ("0", 0), ("12", 12)])
def test_a_number_or_auto(word: str, value: Any) -> None:
    assert drafts_or_auto(word) == value


@pytest.mark.parametrize("word", ["-1", "four", ""])
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="--num-speculative-tokens"):
        drafts_or_auto(word)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


def test_throughput_on_the_demo_pair(tmp_path: Path) -> None:
    words = ["--batch-sizes", "1,2", "--numerics", "fast", "--num-prompts", "2"]
    words += ["--max-new-tokens", "4", "--output", str(tmp_path), "--json"]
    found = run("throughput", *words)
    assert found.exit_code == 0, found.output
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 6
    assert all(r["rows"][0]["token_ids"] == records[0]["rows"][0]["token_ids"] for r in records)
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "(2/2)" in report
    assert "K=auto" in report
    assert (tmp_path / "throughput.svg").read_text().startswith("<svg")
    assert run("throughput", *words).exit_code == 0
    assert (tmp_path / "results.jsonl").read_text().splitlines() == lines  # nothing ran twice


def test_scaling_on_the_demo_pair(tmp_path: Path) -> None:
    words = ["--batch-sizes", "1,3", "--numerics", "fast", "--contexts", "12,24"]
    found = run("scaling", *words, "--max-new-tokens", "3", "--output", str(tmp_path), "--json")
    assert found.exit_code == 0, found.output
    records = [json.loads(x) for x in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {r["prompt_tokens"] for r in records} == {12, 24, 36, 72}
    assert "| 24 | 3 |" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_peers_need_models_and_questions(tmp_path: Path) -> None:
    found = run("throughput", "--peers", str(tmp_path))
    assert found.exit_code == 2
    assert "--peers needs" in found.output
