"""What users and servers hand in, in the forms that they really have."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.cli import app
from draftproof.cli.examining import as_question
from draftproof.cli.options import DecodingOptions, ModelOptions
from draftproof.errors import InputError
from draftproof.faultlab.fake_client import FakeServerClient
from draftproof.faultlab.fake_server import (
    FakeServer,
    Response,
    ServerFault,
    fake_server,
    serving,
)
from draftproof.faultlab.faults import Condition, by_name
from draftproof.faultlab.scenarios import Scenario, quick_scenario
from draftproof.forensics.examine import examine
from draftproof.forensics.subjects.base import NOT_SHOWN, Inquiry, Run, Task
from draftproof.forensics.subjects.dialects import Dialect, LlamaCpp, Sglang, Vllm
from draftproof.forensics.subjects.file import FileSubject
from draftproof.forensics.subjects.http import KEY_VARIABLE, HttpSubject
from draftproof.forensics.subjects.spec import ENGINE, escaped, options_of, parse
from draftproof.models import demo_paths

from .canned import Canned, answer, inquiry

IDS = [1, 2, 3]
DIALECTS = [Vllm(), Sglang(), LlamaCpp()]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)


# -- SPECs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("target=run=3,v2,draft=d", "run=3,v2"),
        ("target=run=3,v2,batch=2,draft=d", "run=3,v2"),
        (r"target=a\,batch=2,draft=d", "a,batch=2"),
        (r"draft=d,target=a\,b", "a,b"),
    ],
)
def test_a_value_of_a_spec_may_hold_commas(text: str, target: str) -> None:
    found = options_of(text, ENGINE)
    assert (found["target"], found["draft"]) == (target, "d")


@pytest.mark.parametrize("value", ["run=3,v2", "a,batch=2", ",", "x,,y", "plain"])
def test_an_escaped_value_is_read_back(value: str) -> None:
    assert options_of(f"target={escaped(value)},batch=4", ENGINE) == {
        "target": value,
        "batch": "4",
    }


def test_the_short_form_escapes_the_folders_that_it_is_given() -> None:
    models = ModelOptions(target="run=3,batch=9", draft="d,k=1")
    asked = as_question(models, DecodingOptions(), 4, "auto", None)
    for side in (asked.reference, asked.candidate):
        options = options_of(side.removeprefix("engine:"), ENGINE)
        assert options["target"] == "run=3,batch=9"
    assert (options["draft"], options["k"], options["batch"]) == ("d,k=1", "4", "4")


def test_a_folder_with_a_comma_is_examined(tmp_path: Path) -> None:
    folder = tmp_path / "run=3,v2"
    folder.symlink_to(demo_paths()[0], target_is_directory=True)
    arguments = ["check", "--target", folder, "--ngram", "--batch-sizes", "2", "--prompt", "The"]
    arguments += ["--max-new-tokens", "4", "--numerics", "fast", "--html", tmp_path / "r.html"]
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output


# -- servers ---------------------------------------------------------------------------------------


def client(url: str, dialect: Dialect | None = None, **options: Any) -> HttpSubject:
    return HttpSubject(name=url, url=url, dialect=dialect or Vllm(), **options)


def one_row() -> Inquiry:
    return inquiry(1, new=len(IDS))


def asked(dialect: Dialect, change: ServerFault, path: str = "") -> Run:
    subject = Canned(respond=lambda setup: [answer(IDS)])
    with serving(subject, server_fault=change, quiet=0.01) as url:
        return client(url + path, dialect).run(one_row())


def honest(number: int, response: Response) -> Response:
    return response


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
@every_dialect
def test_a_url_may_end_in_v1(dialect: Dialect, end: str) -> None:
    assert asked(dialect, honest, end).ids == [tuple(IDS)]


def test_the_twin_in_float32_may_end_in_v1_too() -> None:
    side = parse("http://h:1/base/v1?kind=vllm&float32=http://h:2/v1/")
    assert isinstance(side, HttpSubject)
    assert (side.url, side.float32) == ("http://h:1/base", "http://h:2")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"error": {"message": "max_tokens is too large", "code": 400}}', "too large"),
        ('{"error": "no such model"}', "no such model"),
        ('{"detail": [{"msg": "field required"}]}', "field required"),
        ('{"object": "error", "message": "context length 8"}', "context length 8"),
        ("upstream\n connect error", "upstream connect error"),
    ],
)
@every_dialect
def test_the_servers_own_message_and_the_url_are_shown(
    dialect: Dialect, body: str, said: str
) -> None:
    error = asked(dialect, lambda number, r: Response(status=400, body=body.encode())).answers[0]
    assert f"{dialect.path}: HTTP 400: " in (error.error or "")
    assert "POST http://127.0.0.1:" in (error.error or "")
    assert said in (error.error or "")


def test_a_key_that_the_server_repeats_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
    body = b'{"error": {"message": "bad key sk-secret"}}'
    error = asked(Vllm(), lambda number, r: Response(status=401, body=body)).answers[0].error
    assert error is not None
    assert "bad key ***" in error
    assert "secret" not in error


def test_a_server_that_is_not_there_is_named() -> None:
    error = client("http://127.0.0.1:9", timeout=5).run(one_row()).answers[0].error
    assert error is not None
    assert "http://127.0.0.1:9/v1/completions" in error
    assert "ConnectError" in error


# -- scores ----------------------------------------------------------------------------------------


def edited(change: Any) -> ServerFault:
    """A server whose JSON is changed before it is sent."""

    def fault(number: int, response: Response) -> Response:
        body = json.loads(response.body)
        change(body)
        return Response(status=200, body=json.dumps(body).encode())

    return fault


def vllm_scores(body: Any) -> list[dict[str, Any]]:
    return body["choices"][0]["logprobs"]["top_logprobs"]  # type: ignore[no-any-return]


def null_second(body: Any) -> None:
    """The second alternative at the second place has probability 0."""
    if "choices" in body:
        vllm_scores(body)[1] = {"token_id:2": -0.1, "token_id:99": None}
    elif "output_ids" in body:
        body["meta_info"]["output_top_logprobs"][1] = [[-0.1, 2, None], [None, 99, None]]
    else:
        listed = [{"id": 2, "logprob": -0.1}, {"id": 99, "logprob": None}]
        body["completion_probabilities"][1]["top_logprobs"] = listed


def null_place(body: Any) -> None:
    """The second place has no scores at all."""
    if "choices" in body:
        vllm_scores(body)[1] = None  # type: ignore[call-overload]
    elif "output_ids" in body:
        body["meta_info"]["output_top_logprobs"][1] = None
    else:
        body["completion_probabilities"][1].update(logprob=0.0, top_logprobs=[])


def no_score(body: Any) -> None:
    """Something else than a number."""
    if "choices" in body:
        vllm_scores(body)[1] = {"token_id:2": "high"}
    elif "output_ids" in body:
        body["meta_info"]["output_top_logprobs"][1] = [["high", 2, None]]
    else:
        body["completion_probabilities"][1]["top_logprobs"] = [{"id": 2, "logprob": "high"}]


def no_list(body: Any) -> None:
    """Another shape altogether."""
    if "choices" in body:
        body["choices"] = [["text"]]
    elif "output_ids" in body:
        body["meta_info"] = "text"
    else:
        body["completion_probabilities"] = 7


@every_dialect
def test_a_null_score_is_minus_infinity(dialect: Dialect) -> None:
    found = asked(dialect, edited(null_second)).answers[0]
    assert found.error is None
    assert [top.ids for top in found.tops] == [(1, 99), (2,), (3, 99)]


@every_dialect
def test_a_token_without_scores_is_a_place_without_evidence(dialect: Dialect) -> None:
    found = asked(dialect, edited(null_place)).answers[0]
    assert found.error is None
    assert found.tops[1] == NOT_SHOWN
    assert [top.ids for top in found.tops] == [(1, 99), (), (3, 99)]


@pytest.mark.parametrize("change", [no_score, no_list])
@every_dialect
def test_scores_of_another_kind_are_an_error_of_the_row(dialect: Dialect, change: Any) -> None:
    error = asked(dialect, edited(change)).answers[0].error
    assert error is not None
    assert dialect.path in error


def test_null_scores_of_a_prompt_are_an_error_of_the_row() -> None:
    body = {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": None}}]}]}
    with pytest.raises(ValueError, match="without a score"):
        Vllm().scored(body, 1)


@pytest.mark.parametrize("fault", ["rejected_zeroed", None])
def test_a_llama_cpp_server_with_a_draft_model_is_examined(fault: str | None) -> None:
    """It shows no scores for accepted drafts, on either side."""
    scenario = quick_scenario(Condition.PLAIN)
    named = by_name(fault) if fault else None
    with ExitStack() as stack:
        reference, candidate = (
            in_process(stack.enter_context(fake_server(scenario.candidate(one))), scenario)
            for one in (None, named)
        )
        report = examine(reference, candidate, scenario.inquiry).as_dict()
        shown = [top for row in candidate.run(scenario.inquiry).answers for top in row.tops]
    assert NOT_SHOWN in shown
    assert any(top.ids for top in shown)
    assert (report["verdict"]["cause"] == "exact") == (fault is None)


def in_process(server: FakeServer, scenario: Scenario) -> HttpSubject:
    return FakeServerClient(
        name=server.url,
        url=server.url,
        dialect=LlamaCpp(),
        batch=scenario.batch,
        k=scenario.k,
        batcher=server.batcher,
    )


# -- what a server is sent -------------------------------------------------------------------------


@contextmanager
def recording(seen: list[dict[str, str]]) -> Iterator[str]:
    """A server that keeps the headers it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return

        def do_POST(self) -> None:
            seen.append(dict(self.headers))
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"choices": [{"token_ids": IDS}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_a_server_is_sent_no_header_of_our_own() -> None:
    seen: list[dict[str, str]] = []
    with recording(seen) as url:
        client(url, served="m", batch=1).run(inquiry(2))
    usual = {"host", "accept", "accept-encoding", "connection", "user-agent"}
    usual |= {"content-length", "content-type"}
    assert len(seen) == 2
    assert {name.lower() for one in seen for name in one} <= usual


# -- files -----------------------------------------------------------------------------------------


def file_of(folder: Path, *lines: dict[str, Any], bom: bool = False) -> FileSubject:
    path = folder / "answers.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8-sig" if bom else "utf-8")
    return FileSubject(name="f", path=path)


def test_lines_with_an_index_may_come_in_any_order(tmp_path: Path) -> None:
    lines = [{"index": n, "token_ids": [n, n + 1]} for n in (2, 0, 1)]
    assert file_of(tmp_path, *lines).run(inquiry(3)).ids == [(0, 1), (1, 2), (2, 3)]


def test_a_line_that_is_missing_is_an_error_of_its_row(tmp_path: Path) -> None:
    run = file_of(tmp_path, {"index": 2, "ids": [5]}, {"index": 0, "ids": [4]}).run(inquiry(3))
    assert run.answers[0].ids == (4,)
    assert "has index 1" in (run.answers[1].error or "")
    assert run.answers[2].ids == (5,)


def test_an_index_without_a_prompt_is_an_error_of_every_row(tmp_path: Path) -> None:
    run = file_of(tmp_path, {"index": 0, "ids": [5]}, {"index": 7, "ids": [4]}).run(inquiry(2))
    assert all("has index 7, there are 2 prompts" in (a.error or "") for a in run.answers)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"index": 0, "ids": [1]}, "line 2: a second line with index 0"),
        ({"ids": [1]}, "line 2: no index"),
        ({"index": "1", "ids": [1]}, "line 2"),
        ({"index": -1, "ids": [1]}, "line 2"),
        ({"index": 1, "ids": [1.5]}, "line 2"),
        ({"index": 1, "ids": "12"}, "line 2"),
    ],
)
def test_lines_that_contradict_each_other_are_refused(
    tmp_path: Path, second: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        file_of(tmp_path, {"index": 0, "ids": [9]}, second)


def test_a_byte_order_mark_and_line_separators_in_texts_are_read(tmp_path: Path) -> None:
    side = file_of(tmp_path, {"text": "a\u2028b", "ids": [1]}, {"ids": [2]}, bom=True)
    assert side.run(inquiry(2)).ids == [(1,), (2,)]


def test_the_output_of_generate_can_be_examined(tmp_path: Path) -> None:
    """Rows of unequal length finish in another order than they were given in."""
    prompts = [
        {"prompt": text, "max_new_tokens": new}
        for text, new in (("The list", 12), ("A function", 2), ("def f", 7))
    ]
    asked_for, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    asked_for.write_text("".join(json.dumps(one) + "\n" for one in prompts))
    arguments = ["--target", demo_paths()[0], "--input", asked_for, "--output", out]
    run = CliRunner().invoke(app, ["generate", *map(str, arguments)])
    assert run.exit_code == 0, run.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] != [0, 1, 2]
    by_index = {line["index"]: tuple(line["token_ids"]) for line in lines}
    tasks = tuple(Task(index=n, text=one["prompt"]) for n, one in enumerate(prompts))
    found = FileSubject(name="f", path=out).run(Inquiry(tasks=tasks))
    assert found.ids == [by_index[n] for n in range(3)]


# -- exit codes ------------------------------------------------------------------------------------


def test_a_crash_is_no_verdict() -> None:
    code = (
        "import draftproof.cli as cli, draftproof.cli.check as check, sys\n"
        "def crash(*a, **k): raise ZeroDivisionError('ours')\n"
        "check.read_items = crash\n"
        "sys.argv = ['draftproof', 'check', '--target', 'x', '--prompt', 'y']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "ZeroDivisionError: ours" in done.stderr
