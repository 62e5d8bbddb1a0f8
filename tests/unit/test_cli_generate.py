"""`draftproof generate` with a scripted pair: outputs, bad lines, resuming, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli.journal import meta_path
from draftproof.errors import OutOfMemoryError

from .cli_fakes import FakePair, FakeTokenizer, invoke, read_lines, text_after, use

PROMPTS = ["a long prompt", "mid one", "x"]
GOOD = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> FakePair:
    return use(monkeypatch, FakePair())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(GOOD)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def generate(*arguments: object, stdin: str | bytes | None = None) -> Any:
    return invoke("generate", "--target", "T", "--max-new-tokens", 5, *arguments, stdin=stdin)


# -- output


def test_one_prompt_prints_its_text_and_nothing_else_on_stdout(pair: FakePair) -> None:
    run = generate("--prompt", "hello")
    assert (run.exit_code, run.stdout) == (0, text_after("hello", 5) + "\n")


def test_texts_come_in_the_order_of_the_prompts_under_headings(pair: FakePair) -> None:
    run = generate("--prompt", "long prompt", "--prompt", "x")
    assert pair.decoded[0] == [ord("x")]  # it did finish first
    expected = [
        "==> prompt 1 <==",
        text_after("long prompt", 5),
        "==> prompt 2 <==",
        text_after("x", 5),
    ]
    assert run.stdout.splitlines() == expected


def test_json_lines_on_stdout_come_in_order(pair: FakePair) -> None:
    run = generate("--json", stdin=GOOD)
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["text"] for row in rows] == [text_after(prompt, 5) for prompt in PROMPTS]


def test_a_line_of_the_output_says_all_about_its_request(pair: FakePair, out: Path) -> None:
    line = {"question_id": 81, "category": "qa", "turns": ["abc", "later"]}
    assert generate("--output", out, stdin=json.dumps(line)).exit_code == 0
    (row,) = read_lines(out)
    assert row == {
        "index": 0,
        "key": row["key"],
        "question_id": 81,
        "category": "qa",
        "prompt": "abc",
        "text": text_after("abc", 5),
        "token_ids": [ord(letter) for letter in text_after("abc", 5)],
        "finish_reason": "length",
        "stop_reason": None,
        "seed": None,
        "prompt_len": 3,
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 5,
            "total_tokens": 8,
            "completion_tokens_details": {
                "accepted_prediction_tokens": 6,
                "rejected_prediction_tokens": 2,
            },
        },
        "sampling": {"do_sample": False},
        "stats": row["stats"],
        "mode": "speculative",
        "numerics": "fast",
        "executor": "torch",
    }
    assert row["stats"]["num_accepted_draft_tokens"] == 6


def test_lines_are_written_as_rows_finish(pair: FakePair, source: Path, out: Path) -> None:
    generate("--input", source, "--output", out)
    assert [row["index"] for row in read_lines(out)] == [2, 1, 0]


def test_the_summary_is_on_stderr(pair: FakePair, source: Path) -> None:
    words = generate("--input", source).stderr
    assert "3 requests, 15 tokens in" in words
    assert "acceptance 75.0%, mean acceptance length 4.00, mode speculative" in words


def test_json_with_an_output_prints_a_summary(pair: FakePair, source: Path, out: Path) -> None:
    summary = json.loads(generate("--input", source, "--output", out, "--json").stdout)
    assert (summary["total"], summary["finished"], summary["failed"]) == (3, 3, 0)
    assert summary["tokens"] == 15
    assert summary["settings"]["target"] == "fake"
    assert summary["settings"]["max_new_tokens"] == 5


# -- input


def test_stdin_may_be_plain_text_in_windows_dress(pair: FakePair) -> None:
    run = generate("--json", stdin=b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [json.loads(line)["prompt"] for line in run.stdout.splitlines()] == ["one", "two"]


def test_a_folder_of_texts(pair: FakePair, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    run = generate("--input", tmp_path)
    assert run.stdout.splitlines()[::2] == ["==> a.txt <==", "==> b.txt <=="]


def test_chat_goes_through_the_template(pair: FakePair) -> None:
    generate("--prompt", "hi", "--chat")
    assert pair.decoded == [[ord(letter) for letter in "<hi>"]]


def test_a_line_may_have_its_own_length(pair: FakePair) -> None:
    lines = '{"prompt": "a", "max_new_tokens": 2}\n{"prompt": "b"}\n'
    run = generate("--json", stdin=lines)
    assert [len(json.loads(line)["token_ids"]) for line in run.stdout.splitlines()] == [2, 5]
    assert pair.calls[0]["max_new_tokens"] == [2, 5]


def test_options_reach_the_models_and_the_engine(pair: FakePair) -> None:
    run = generate(
        *("--prompt", "a", "--draft", "D", "--dtype", "float32", "--device", "cuda"),
        *("--numerics", "fast", "--method", "eqspec", "--executor", "other"),
        *("--min-new-tokens", 2, "--stop-string", "x", "--stop-string", "y"),
        *("--max-num-seqs", 3, "--num-speculative-tokens", 6, "--max-num-batched-tokens", 64),
    )
    assert run.exit_code == 0, run.stderr
    models, call = pair.opened_with, pair.calls[0]
    assert models is not None
    assert (models.target, models.draft, models.dtype, models.device) == (
        *("T", "D", "float32", "cuda"),
    )
    assert (models.numerics, models.method, models.executor) == ("fast", "eqspec", "other")
    assert (call["max_new_tokens"], call["min_new_tokens"]) == ([5], [2])
    assert call["stop_strings"] == [["x", "y"]]
    assert (call["max_num_seqs"], call["num_speculative_tokens"]) == (3, 6)
    assert call["max_num_batched_tokens"] == 64


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), "auto"), (("--method", "exspec"), 4), (("--num-speculative-tokens", 0), 0)],
    ids=str,
)
def test_k_is_chosen_unless_a_number_is_meant(
    pair: FakePair, options: tuple[object, ...], expected: object
) -> None:
    run = generate("--prompt", "a", *options)
    assert run.exit_code == 0, run.stderr
    assert pair.calls[0]["num_speculative_tokens"] == expected


def test_sampling_options_are_passed_on_only_where_given(pair: FakePair) -> None:
    run = generate("--prompt", "a")
    assert run.exit_code == 0, run.stderr
    bare = pair.calls[0]
    given: dict[str, float | int | str] = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "coupling": "rejection",
        "repetition_penalty": 1.2,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
    }
    words = [
        word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    run = generate("--prompt", "a", *words)
    assert run.exit_code == 0, run.stderr
    lists = {name: [value] for name, value in given.items()}
    assert pair.calls[1] | {"observers": bare["observers"]} == bare | lists | {"do_sample": [True]}
    assert given.keys() & bare.keys() == {"seed"}  # of its own, and not used: it is greedy
    assert bare["do_sample"] == [False]


# -- bad lines

BAD = [
    '{"prompt": "fine"}',
    "{torn",
    '{"prompt": [1, 999]}',
    '{"prompt": "' + "long " * 9 + '", "id": "too long"}',
    '{"messages": [{"role": "user", "content": "I am an alien"}]}',
    '{"prompt": "also fine"}',
]


def test_bad_lines_are_reported_recorded_and_do_not_stop_the_rest(
    pair: FakePair, out: Path
) -> None:
    run = generate("--output", out, stdin="\n".join(BAD))
    rows = {row["index"]: row for row in read_lines(out)}
    assert run.exit_code == 1
    assert [index for index in sorted(rows) if "error" in rows[index]] == [1, 2, 3, 4]
    assert rows[3] == {
        "index": 3,
        "key": rows[3]["key"],
        "id": "too long",
        "error": "prompt: 45 tokens are more than the context of 40",
    }
    assert rows[0]["text"] == text_after("fine", 5)
    assert rows[5]["text"] == text_after("also fine", 5)
    for words in (
        "line 2: bad JSON",
        "line 3: prompt: token id 999",
        "line 4: prompt: 45",
        "4 failed",
    ):
        assert words in run.stderr
    assert "4 failed" in run.stderr
    assert "line 5: messages: the chat template refuses: aliens" in run.stderr


def test_bad_lines_on_stdout_appear_in_their_place(pair: FakePair) -> None:
    run = generate("--json", stdin="\n".join(BAD))
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert "==> line 2 <==" not in generate(stdin="\n".join(BAD)).stdout


def test_nothing_is_loaded_when_every_line_is_bad(pair: FakePair, out: Path) -> None:
    run = generate("--output", out, stdin="{\n{\n")
    assert (run.exit_code, pair.opened_with) == (1, None)
    assert len(read_lines(out)) == 2


def test_an_error_that_is_not_the_chat_templates_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(FakeTokenizer):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            raise RuntimeError("a bug")

    use(monkeypatch, FakePair()).tokenizer = Broken()
    with pytest.raises(RuntimeError, match="a bug"):
        generate("--prompt", "a")


# -- usage errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "D", "--ngram", "--prompt", "a"], "not both"),
        (["--input", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--input", "a.txt", "--prompt", "a"], "not both"),
        ([], "no prompts in stdin"),
        (["--prompt", "a", "--resume"], "need --output"),
        (["--prompt", "a", "--output", "gone/out.jsonl"], "there is no folder gone"),
        (["--prompt", "a", "--output", "o", "--resume", "--overwrite"], "not both"),
        (["--prompt", "a", "--ngram", "--prompt-lookup-min", "4"], "--prompt-lookup-min 4"),
        (["--prompt", "a", "--max-num-seqs", "0"], "max-num-seqs"),
        (["--prompt", "a", "--dtype", "int3"], "dtype"),
        (["--no-such-option"], "no-such-option"),
    ],
)
def test_usage_errors_exit_2_before_loading(
    pair: FakePair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = generate(*arguments)
    assert (run.exit_code, run.stdout, pair.opened_with) == (2, "", None)
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_the_input_is_never_the_output(pair: FakePair, source: Path) -> None:
    run = generate("--input", source, "--output", source, "--overwrite")
    assert (run.exit_code, source.read_text()) == (2, GOOD)
    assert "--output is the input file" in run.stderr


@pytest.mark.parametrize("error", [OutOfMemoryError("use 4 rows"), OSError("[disk]\nfull")])
def test_errors_are_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def open_pair(options: object) -> None:
        raise error

    monkeypatch.setattr("draftproof.cli.loading.open_pair", open_pair)
    run = generate("--prompt", "a")
    assert run.exit_code == 2
    assert run.stderr == f"error: {' '.join(str(error).split())}\n"


def test_a_model_that_does_not_load_costs_no_output(
    monkeypatch: pytest.MonkeyPatch, pair: FakePair, source: Path, out: Path
) -> None:
    generate("--input", source, "--output", out)
    before = out.read_bytes(), meta_path(out).read_bytes()

    def open_pair(options: object) -> None:
        raise OSError("no such model")

    monkeypatch.setattr("draftproof.cli.loading.open_pair", open_pair)
    run = generate("--input", source, "--output", out, "--overwrite", "--ngram")
    assert (run.exit_code, out.read_bytes(), meta_path(out).read_bytes()) == (2, *before)


# -- interrupted and resumed


def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(
    monkeypatch: pytest.MonkeyPatch, source: Path, out: Path
) -> None:
    use(monkeypatch, FakePair(stop_after=2))
    run = generate("--input", source, "--output", out)
    assert run.exit_code == 130
    assert "interrupted: 2 of 3 requests done; --resume does the rest" in run.stderr
    assert run.stderr.count("interrupted") == 1
    kept = out.read_bytes()
    assert [row["index"] for row in read_lines(out)] == [2, 1]

    rest = use(monkeypatch, FakePair())
    run = generate("--input", source, "--output", out, "--resume")
    assert run.exit_code == 0
    assert "2 requests were already done" in run.stderr
    assert rest.decoded == [[ord(letter) for letter in PROMPTS[0]]]
    assert out.read_bytes().startswith(kept)
    assert {r["index"]: r["text"] for r in read_lines(out)} == {
        i: text_after(prompt, 5) for i, prompt in enumerate(PROMPTS)
    }


def test_ctrl_c_prints_finished_texts_that_waited_for_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, FakePair(stop_after=2))
    run = generate("--json", stdin=GOOD)
    assert run.exit_code == 130
    assert [json.loads(line)["index"] for line in run.stdout.splitlines()] == [1, 2]
    assert "--resume" not in run.stderr


def test_ctrl_c_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_pair(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftproof.cli.loading.open_pair", open_pair)
    assert generate("--prompt", "a").exit_code == 130


def test_a_torn_last_line_is_done_again(
    monkeypatch: pytest.MonkeyPatch, source: Path, out: Path
) -> None:
    use(monkeypatch, FakePair())
    generate("--input", source, "--output", out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-20])
    run = generate("--input", source, "--output", out, "--resume")
    assert (run.exit_code, out.read_bytes()) == (0, whole)
    assert "dropped 1 incomplete line" in run.stderr


def test_resuming_a_finished_run_loads_nothing(
    monkeypatch: pytest.MonkeyPatch, source: Path, out: Path
) -> None:
    use(monkeypatch, FakePair())
    assert generate("--input", source, "--output", out).exit_code == 0
    before, idle = out.read_bytes(), use(monkeypatch, FakePair())
    assert generate("--input", source, "--output", out, "--resume").exit_code == 0
    assert (idle.opened_with, out.read_bytes()) == (None, before)


def test_resuming_tries_failed_lines_again(monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
    use(monkeypatch, FakePair())
    arguments = ("--prompt", "a", "--prompt", "a" * 50, "--output", out)
    assert generate(*arguments).exit_code == 1
    longer = use(monkeypatch, FakePair())
    longer.max_model_len = 60
    run = generate(*arguments, "--resume")
    assert (run.exit_code, longer.decoded) == (0, [[97] * 50])
    assert "1 failed requests are tried again" in run.stderr
    assert [row["index"] for row in read_lines(out)] == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--draft", "D"], '--draft was not given, now "D"'),
        (["--ngram"], "--ngram was false, now true"),
        (["--min-new-tokens", "3"], "--min-new-tokens was 0, now 3"),
        (["--stop-string", "x"], '--stop-string was [], now ["x"]'),
        (["--dtype", "float32"], '--dtype was "auto", now "float32"'),
        (["--chat"], "--chat was false, now true"),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(
    pair: FakePair, source: Path, out: Path, change: list[str], words: str
) -> None:
    generate("--input", source, "--output", out)
    before = out.read_bytes()
    run = generate("--input", source, "--output", out, "--resume", *change)
    assert (run.exit_code, out.read_bytes()) == (2, before)
    assert words in run.stderr


def test_resuming_with_fewer_rows_is_allowed(pair: FakePair, source: Path, out: Path) -> None:
    generate("--input", source, "--output", out)
    arguments = ("--max-num-seqs", 2, "--max-num-batched-tokens", 64)
    assert generate("--input", source, "--output", out, "--resume", *arguments).exit_code == 0


def test_an_existing_output_needs_a_word(pair: FakePair, source: Path, out: Path) -> None:
    out.write_text("precious\n")
    run = generate("--input", source, "--output", out)
    assert (run.exit_code, out.read_text()) == (2, "precious\n")
    assert not meta_path(out).exists()
    assert generate("--input", source, "--output", out, "--overwrite").exit_code == 0
    assert len(read_lines(out)) == 3
