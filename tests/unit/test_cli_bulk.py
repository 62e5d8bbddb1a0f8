"""Bulk files with a scripted pair: settings of lines, answers, order, OpenAI's batch output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli import decoding
from draftproof.cli.console import stderr
from draftproof.cli.progress import Meter, ProgressBar
from draftproof.cli.summary import Summary

from .cli_fakes import FakePair, invoke, read_lines, text_after, use
from .test_cli_progress import round_of, row


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> FakePair:
    return use(monkeypatch, FakePair())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def write(path: Path, *lines: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def generate(source: Path, out: Path, *more: object) -> Any:
    return invoke(
        *("generate", "--model", "T", "--max-new-tokens", 5),
        *("--input", source, "--output", out, *more),
    )


def run_batch(source: Path, out: Path, *more: object) -> Any:
    return invoke("run-batch", "-i", source, "-o", out, "--model", "T", "--draft", "D", *more)


def batch_line(custom_id: str, body: dict[str, Any], kind: str = "completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": f"/v1/{kind}", "body": body}


# -- settings of lines


def test_each_line_has_its_own_settings(pair: FakePair, source: Path, out: Path) -> None:
    write(
        source,
        {"prompt": "a", "temperature": 0.5, "seed": 3, "stop": "x", "max_tokens": 2},
        {"prompt": "b", "sampling_params": {"top_k": 5, "n": 2, "repetition_penalty": 1.5}},
        {"prompt": "c", "logit_bias": {"7": -5}, "stop_token_ids": [9]},
    )
    assert generate(source, out, "--top-p", 0.9).exit_code == 0
    (call,) = pair.calls
    assert call["temperature"] == [0.5, None, None]
    assert call["top_p"] == [0.9, 0.9, 0.9]
    assert call["top_k"] == [None, 5, None]
    assert call["do_sample"] == [True, True, True]
    assert call["max_new_tokens"] == [2, 5, 5]
    assert call["num_return_sequences"] == [1, 2, 1]
    assert call["stop_strings"] == [["x"], None, None]
    assert call["logit_bias"] == [None, None, {7: -5}]
    assert call["eos_token_id"] == [[], [], [9]]
    assert call["seed"][0] == 3
    assert len(set(call["seed"])) == 3


def test_wrong_lines_fail_by_the_name_of_the_field(pair: FakePair, source: Path, out: Path) -> None:
    write(
        source,
        {"prompt": "a", "temprature": 1},
        {"prompt": "b"},
        {"prompt": "c", "max_tokens": "5"},
        {"prompt": "d", "model": "gpt"},
        {
            "messages": [{"role": "user", "content": "x"}],
            "prediction": {"type": "content", "content": "y"},
        },
    )
    assert generate(source, out).exit_code == 1
    errors = {r["index"]: r["error"] for r in read_lines(out) if "error" in r}
    fields = {index: error.split(":")[0] for index, error in errors.items()}
    assert fields == {0: "temprature", 2: "max_tokens", 3: "model", 4: "prediction"}
    assert generate(source, out, "--resume", "--served-model-name", "gpt").exit_code == 1
    assert {r["index"] for r in read_lines(out) if "error" not in r} == {1, 3}


def test_drawn_seeds_are_told_and_the_same_when_resumed(
    pair: FakePair, source: Path, out: Path
) -> None:
    write(source, {"prompt": "a", "temperature": 1}, {"prompt": "b", "temperature": 1})
    generate(source, out)
    first = pair.calls[0]["seed"]
    out.write_text("")  # as if the kill had come before the first line
    generate(source, out, "--resume")
    assert pair.calls[1]["seed"] == first
    generate(source, out, "--overwrite")
    assert pair.calls[2]["seed"] != first
    generate(source, out, "--overwrite", "--seed", 4)
    assert pair.calls[3]["seed"] == [4, 4]


def test_several_answers_are_choices(pair: FakePair, source: Path, out: Path) -> None:
    write(source, {"prompt": ["abc", "d"], "n": 2, "temperature": 1}, {"prompt": "e"})
    generate(source, out, "--ordered")
    many, single = read_lines(out)
    assert [choice["text"] for choice in many["choices"]] == [
        text_after("abc", 5),
        text_after("abc", 5),
        text_after("d", 5),
        text_after("d", 5),
    ]
    assert many["usage"]["prompt_tokens"] == 4
    assert many["usage"]["completion_tokens"] == 20
    assert "text" not in many
    assert single["text"] == text_after("e", 5)
    text = invoke("generate", "--model", "T", "--max-new-tokens", 5, "--input", source).stdout
    assert text.splitlines() == [
        "==> line 1 <==",
        *[choice["text"] for choice in many["choices"]],
        "==> line 2 <==",
        single["text"],
    ]


def test_options_are_the_defaults_of_lines(pair: FakePair, source: Path, out: Path) -> None:
    write(source, {"prompt": "a"}, {"prompt": "b", "temperature": 0, "n": 1})
    generate(source, out, "--temperature", 0.7, "--n", 3, "--logprobs", 2)
    (call,) = pair.calls
    assert call["do_sample"] == [True, False]
    assert call["num_return_sequences"] == [3, 1]
    assert call["logprobs"] == [2, 2]
    sampling = {r["index"]: r["sampling"] for r in read_lines(out)}
    assert sampling == {0: {"do_sample": True, "temperature": 0.7}, 1: {"do_sample": False}}


# -- large files


def test_a_large_file_goes_to_the_engine_in_parts(
    monkeypatch: pytest.MonkeyPatch, pair: FakePair, source: Path, out: Path
) -> None:
    monkeypatch.setattr(decoding, "MOST_ROWS", 4)
    write(source, *[{"prompt": "x" * (30 - n)} for n in range(10)])
    assert generate(source, out, "--ordered").exit_code == 0
    assert [len(call["max_new_tokens"]) for call in pair.calls] == [4, 4, 2]
    rows = read_lines(out)
    assert [r["index"] for r in rows] == list(range(10))
    assert [r["text"] for r in rows] == [text_after("x" * (30 - n), 5) for n in range(10)]


def test_lines_are_not_held_when_they_are_written(
    monkeypatch: pytest.MonkeyPatch, pair: FakePair, source: Path, out: Path
) -> None:
    """Of the whole run no more is kept than of one part of it."""
    import gc

    from draftproof.schema.translation import Work

    monkeypatch.setattr(decoding, "MOST_ROWS", 4)
    write(source, *[{"prompt": str(n)} for n in range(40)])
    alive: list[int] = []
    add = Summary.add

    def counted(self: Summary, result: Any) -> None:
        add(self, result)
        if self.requests % 10 == 0:
            gc.collect()
            alive.append(sum(type(thing) is Work for thing in gc.get_objects()))

    monkeypatch.setattr(Summary, "add", counted)
    assert generate(source, out).exit_code == 0
    assert len(alive) == 4
    assert max(alive) <= 8


def test_progress_is_logged_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([0.0, 0.0, 5.0, 11.0, 11.0, 12.0, 13.0]).__next__
    meter = Meter([4, 4], clock=clock, requests=8)
    with ProgressBar(meter) as bar:
        for _ in range(3):
            bar.on_round(round_of(row(0, 1), row(1, 1)))
    assert capsys.readouterr().err == "11 s: 0/8 requests, 0.4 tokens/s\n"
    assert not stderr().is_terminal


def test_the_meter_goes_on_from_part_to_part() -> None:
    meter = Meter([], requests=4)
    meter.begin([10, 10])
    assert meter.total == 40
    meter.on_round(round_of(row(0, 4, end=True), row(1, 10, end=True)))
    meter.begin([2, 2])
    meter.on_round(round_of(row(0, 2, end=True)))
    assert (meter.finished, meter.tokens, meter.total) == (3, 16, 18)


# -- order, places


def test_ordered_is_the_order_of_the_input(pair: FakePair, source: Path, out: Path) -> None:
    write(source, *[{"prompt": "x" * (9 - n)} for n in range(5)])
    generate(source, out)
    assert [r["index"] for r in read_lines(out)] == [4, 3, 2, 1, 0]
    generate(source, out, "--resume", "--ordered")
    assert [r["index"] for r in read_lines(out)] == [0, 1, 2, 3, 4]
    assert len(pair.calls) == 1
    run = invoke("generate", "--model", "T", "--prompt", "a", "--ordered")
    assert (run.exit_code, "--ordered needs --output" in run.stderr) == (2, True)


def test_an_output_among_the_inputs_is_refused(pair: FakePair, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    run = generate(tmp_path, tmp_path / "out.jsonl")
    assert run.exit_code == 2
    assert "lies in the input folder" in run.stderr
    assert generate(tmp_path, tmp_path, "--overwrite").exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_appended_and_mended_input(pair: FakePair, source: Path, out: Path) -> None:
    write(source, {"prompt": "a"}, {"prompt": "b", "oops": 1}, {"prompt": "c"})
    assert generate(source, out).exit_code == 1
    write(source, {"prompt": "b"}, {"prompt": "a"}, {"prompt": "d"}, {"prompt": "c"})
    run = generate(source, out, "--resume", "--ordered")
    assert (run.exit_code, len(pair.calls)) == (0, 2)
    assert pair.decoded[2:] == [[ord("b")], [ord("d")]]
    assert [(r["index"], r["prompt"]) for r in read_lines(out)] == [
        (0, "b"),
        (1, "a"),
        (2, "d"),
        (3, "c"),
    ]


# -- OpenAI's batch files


def test_run_batch_writes_openais_output(pair: FakePair, source: Path, out: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
    write(
        source,
        batch_line("1", {"model": "T", "prompt": "ab", "max_tokens": 3, "temperature": 0}),
        batch_line("2", chat, "chat/completions"),
        batch_line("3", {"model": "gpt", "prompt": "ab"}),
        batch_line("1", {"prompt": "cd"}),
        {"prompt": "ab"},
    )
    run = run_batch(source, out, "--ordered")
    assert run.exit_code == 1
    rows = read_lines(out)
    assert all(r.keys() == {"id", "custom_id", "response", "error"} for r in rows)
    assert [r["custom_id"] for r in rows] == ["1", "2", "3", "1", None]
    assert [r["response"]["status_code"] for r in rows] == [200, 200, 404, 400, 400]
    body = rows[0]["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == text_after("ab", 3)
    assert body["draftproof"]["sampling"] == {"do_sample": False}
    body = rows[1]["response"]["body"]
    assert body["choices"][0]["message"]["content"] == text_after("<hi>", 4)
    assert body["draftproof"]["sampling"] == {"do_sample": True, "temperature": 1.0}
    assert rows[0]["error"] is None
    assert rows[2]["error"]["code"] == "404"
    assert rows[3]["response"]["body"]["error"]["param"] == "custom_id"
    call = dict(zip(pair.calls[0]["max_new_tokens"], pair.calls[0]["do_sample"], strict=True))
    assert call == {3: False, 4: True}


def test_a_batch_is_resumed(monkeypatch: pytest.MonkeyPatch, source: Path, out: Path) -> None:
    write(source, *[batch_line(str(n), {"prompt": "x" * (9 - n)}) for n in range(4)])
    use(monkeypatch, FakePair(stop_after=2))
    assert run_batch(source, out).exit_code == 130
    before = read_lines(out)
    rest = use(monkeypatch, FakePair())
    assert run_batch(source, out, "--resume").exit_code == 0
    assert read_lines(out)[:2] == before
    assert len(rest.decoded) == 2
    created = {r["response"]["body"]["created"] for r in read_lines(out)}
    assert len(created) == 1
    assert run_batch(source, out).exit_code == 2
    run = generate(source, out, "--resume")
    assert 'command was "run-batch", now "generate"' in run.stderr
