"""The command line as its own process, on the embedded models: kills, signals, real loading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftproof.cli.journal import meta_path
from draftproof.cli.outfile import OutFile
from draftproof.models import DEMO_PROMPTS, demo_paths

from .cli_fakes import invoke, read_lines

TARGET, DRAFT = map(str, demo_paths())
MODELS = ("--target", TARGET, "--draft", DRAFT, "--dtype", "float32")
DRAFTPROOF = (sys.executable, "-m", "draftproof")
# Short prompts with long answers: many rounds, so that a signal comes in the middle.
PROMPTS = [prompt[:40] for prompt in DEMO_PROMPTS[:6]]
LENGTH = ("--max-new-tokens", "24", "--max-num-seqs", "2")


def ids_of(path: Path) -> dict[int, list[int]]:
    rows = read_lines(path)
    assert len({row["index"] for row in rows}) == len(rows), "a request was done twice"
    return {row["index"]: row["token_ids"] for row in rows}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


@pytest.fixture(scope="module")
def uninterrupted(source: Path) -> dict[int, list[int]]:
    out = source.with_name("whole.jsonl")
    run = invoke("generate", *MODELS, *LENGTH, "--input", source, "--output", out)
    assert run.exit_code == 0, run.stderr
    return ids_of(out)


def stopped_midway(source: Path, out: Path, sign: signal.Signals) -> int:
    """Run until two lines are out, send the signal; the exit code."""
    command = [*DRAFTPROOF, "generate", *MODELS, *LENGTH]
    process = subprocess.Popen([*command, "--input", source, "--output", out])
    try:
        while not (out.exists() and out.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.01)
        process.send_signal(sign)
        return process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("sign", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_is_resumed_with_nothing_lost_or_doubled(
    source: Path,
    uninterrupted: dict[int, list[int]],
    tmp_path: Path,
    sign: signal.Signals,
    code: int,
) -> None:
    out = tmp_path / "out.jsonl"
    assert stopped_midway(source, out, sign) == code
    assert 2 <= out.read_bytes().count(b"\n") < len(PROMPTS)
    with out.open("ab") as file:  # as if the kill had come within a write
        file.write(b'{"index": 5, "key": "torn')
    run = invoke("generate", *MODELS, *LENGTH, "--input", source, "--output", out, "--resume")
    assert run.exit_code == 0, run.stderr
    assert ids_of(out) == uninterrupted


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Also where rows are sampled without a seed, lines are repeated, and some cannot be used."""
    lines: list[dict[str, object]] = [{"prompt": prompt} for prompt in PROMPTS[:4]]
    lines[1] |= {"temperature": 0.9}
    lines[2] |= {"temperature": 1.2, "n": 2, "logprobs": 1}
    lines[3] = {"prompt": "a", "no such field": 1}
    lines += lines[:3]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    length = ("--max-new-tokens", "16", "--max-num-seqs", "2")
    options = (*length, "--num-speculative-tokens", "3", "--ordered")
    command = [*DRAFTPROOF, "generate", *MODELS, *options, "--input", source, "--output", out]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not (out.exists() and out.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert out.read_bytes().count(b"\n") < len(lines)
    whole = tmp_path / "whole.jsonl"  # the same run, that is the same drawn seeds, without a kill
    meta_path(whole).write_bytes(meta_path(out).read_bytes())
    for path in (out, whole):
        run = invoke("generate", *MODELS, *options, "--input", source, "--output", path, "--resume")
        assert run.exit_code == 1, run.stderr
    assert out.read_bytes() == whole.read_bytes()
    rows = read_lines(out)
    assert [row["index"] for row in rows] == list(range(7))
    assert rows[0]["text"] == rows[4]["text"]  # greedy
    assert rows[1]["seed"] != rows[5]["seed"]  # a repeated line is another draw
    assert rows[3]["error"].startswith("no such field: unknown field")
    assert len(rows[2]["choices"]) == 2


@pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")
def test_two_processes_on_one_output_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = [*DRAFTPROOF, "generate", *MODELS, "--input", source, "--output", out]
    held = OutFile(out)
    try:
        for how in ("--resume", "--overwrite"):
            run = subprocess.run([*command, how], capture_output=True, text=True, check=False)
            assert run.returncode == 2
            assert "is being written by another run" in run.stderr
    finally:
        held.close()
    assert not out.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_device_is_refused_and_stays_what_it_is() -> None:
    full = Path("/dev/full")
    run = invoke("generate", *MODELS, "--prompt", "a", "--output", full, "--overwrite")
    assert (run.exit_code, full.is_char_device()) == (2, True)
    assert "is no regular file" in run.stderr


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["generate"], ["run-batch"], ["check"], ["doctor"]]
)
def test_help_is_light(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from draftproof.cli import app\n"
        f"try: app({[*command, '--help']!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'draftproof.schema.fields'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "--help" in run.stdout


def test_version() -> None:
    run = subprocess.run([*DRAFTPROOF, "--version"], capture_output=True, text=True, check=True)
    from draftproof import __version__

    assert run.stdout == f"draftproof {__version__}\n"


def test_the_demo_finds_the_same_tokens_and_accepted_drafts() -> None:
    run = invoke("demo", "--max-new-tokens", 8, "--json")
    assert run.exit_code == 0, run.stderr
    report = json.loads(run.stdout)
    plain, batched, speculative = report["runs"]
    assert report["equal"] is True
    assert plain["tokens"] == batched["tokens"] == speculative["tokens"]
    assert plain["stats"]["num_draft_tokens"] == 0
    assert speculative["stats"]["draft_acceptance_rate"] > 0.1


def test_a_check_of_the_embedded_models() -> None:
    arguments = ("--batch-sizes", "1,3", "--max-new-tokens", 12, "--json", "-")
    run = invoke("check", *MODELS, *arguments, stdin="\n".join(PROMPTS[:3]))
    assert run.exit_code == 0, run.stderr
    report = json.loads(run.stdout)
    assert [trial["exact"] for trial in report["trials"]] == [3, 3]
    assert report["reference"]["mode"].startswith("plain")
    assert report["trials"][0]["mode"] == "speculative"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "/no/such/folder"], "no such folder: /no/such/folder"),
        (["--target", TARGET, "--draft", "./nowhere"], "no such folder: ./nowhere"),
        (["--target", str(Path(__file__).parent)], "cannot load"),
        (["--target", TARGET, "--device", "nonsense"], "cannot load"),
        (["--target", TARGET, "--method", "nonsense"], "nonsense"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_and_exit_2(arguments: list[str], words: str) -> None:
    run = invoke("generate", *arguments, "--prompt", "a")
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert words in run.stderr


def test_a_truncated_weight_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    for file in Path(TARGET).iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[:1000] if file.suffix == ".safetensors" else data)
    run = invoke("generate", "--target", tmp_path, "--prompt", "a")
    assert (run.exit_code, run.stderr.count("\n")) == (2, 1)
    assert f"cannot load {tmp_path}" in run.stderr
