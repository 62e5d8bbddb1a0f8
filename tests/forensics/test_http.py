"""Servers as subjects: the four formats, faults seen through them, and servers that misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from draftproof.errors import InputError
from draftproof.faultlab import fake_server as servers
from draftproof.faultlab.fake_client import FakeServerClient
from draftproof.faultlab.fake_server import Response, ServerFault, honest
from draftproof.faultlab.faults import Condition, by_name
from draftproof.faultlab.scenarios import Scenario, quick_scenario
from draftproof.faultlab.server_faults import breaks, fickle, hangs, truncates
from draftproof.forensics.diagnose import Diagnosis, diagnose
from draftproof.forensics.examine import Controls, examine
from draftproof.forensics.lab import Lab
from draftproof.forensics.report import render
from draftproof.forensics.subjects.base import Answer, Subject
from draftproof.forensics.subjects.dialects import (
    BadAnswerError,
    Dialect,
    LlamaCpp,
    OpenAI,
    Sglang,
    Vllm,
    counted,
    prometheus,
)
from draftproof.forensics.subjects.http import KEY_VARIABLE, Budget, HttpSubject
from draftproof.forensics.verdicts import Cause, Kind

from .canned import Canned, answer, inquiry

ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


AT_ONCE = 0.01  # seconds: subjects that answer by the prompt need not wait for a batch


def serving(subject: Subject, **options: Any) -> Any:
    return servers.serving(subject, **{"quiet": AT_ONCE, **options})


def client(url: str, dialect: Dialect | None = None, **options: Any) -> HttpSubject:
    return HttpSubject(name=url, url=url, dialect=dialect or Vllm(), **options)


def by_prompt() -> Subject:
    """Answers by the prompt, whatever batch a request falls into."""
    return Echo(respond=lambda setup: [])


class Echo(Canned):
    def run(self, asked: Any, setup: Any = None) -> Any:
        answers = tuple(
            answer([t + 10 * sum(task.prompt) for t in range(6)]) for task in asked.tasks
        )
        run = super().run(asked)
        return type(run)(answers=answers, counters=run.counters)


@pytest.mark.parametrize("dialect", [Vllm(), Sglang(), LlamaCpp()], ids=lambda d: d.name)
def test_ids_and_scores_come_through_every_format(dialect: Dialect) -> None:
    with serving(by_prompt()) as url:
        run = client(url, dialect).run(inquiry(3))
    assert [a.error for a in run.answers] == [None] * 3
    assert run.ids == [tuple(t + 10 * (6 + row) for t in range(6)) for row in range(3)]
    assert run.answers[0].tops[0].ids == (60, 99)


def test_a_text_only_server_is_made_into_tokens_again() -> None:
    with serving(by_prompt()) as url:
        dialect = OpenAI(retokenise=lambda text: [int(word) for word in text.split()])
        run = client(url, dialect).run(inquiry(1))
    assert run.ids == [(60, 61, 62, 63, 64, 65)]
    assert run.counters.speculating is None


def test_a_server_scores_its_own_answers_and_the_noise_is_measured_with_it() -> None:
    scenario = quick_scenario(Condition.PLAIN)
    with serving(scenario.reference()) as url:
        lab = Lab(
            reference=client(url, k=0, batch=1), candidate=client(url), inquiry=scenario.inquiry
        )
        scored = lab.reference.scores(scenario.inquiry, lab.expected)  # type: ignore[attr-defined]
        noise = lab.noise(None)
    assert [a.error for a in scored.answers] == [None] * 4
    # tops in front of each token: greedy tokens are their first ids
    assert [tuple(top.ids[0] for top in a.tops) for a in scored.answers] == scored.ids
    assert "no drafter, a row at once" in noise.sources
    assert 0 < noise.band < 1e-4


def test_a_server_that_cannot_score_is_no_error_of_the_rows() -> None:
    with serving(by_prompt()) as url:
        subject = client(url)
        scored = subject.scores(inquiry(2), subject.run(inquiry(2)))
    assert all("HTTP 400" in (a.error or "") for a in scored.answers)


# a canned server has no answers left for what is asked last
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_twin_in_float32_is_asked_for_the_controls() -> None:
    """Two servers whose forks are gone in float32, and two whose forks stay."""
    right, wrong = [answer([1, 2, 3, 4], 0.0625)], [answer([1, 2, 99, 5], 0.0625)]

    def cause(twin: list[Answer]) -> Diagnosis:
        with ExitStack() as stack:
            plain, forked, clean, other = (
                stack.enter_context(serving(Canned(respond=lambda setup, rows=rows: rows)))
                for rows in (right, wrong, right, twin)
            )
            reference = client(plain, k=0, float32=clean)
            candidate = client(forked, k=3, float32=other)
            return diagnose(Lab(reference=reference, candidate=candidate, inquiry=inquiry(1)))

    # one canned answer is little evidence: what counts is that no fork is called noise for the
    # wrong reason, and that a fork that stays in float32 never is
    assert cause(right).finding.cause in (Cause.NUMERIC, Cause.UNDECIDED)
    assert cause(wrong).finding.cause is not Cause.NUMERIC


def test_a_verdict_on_text_says_that_it_is_one() -> None:
    with serving(by_prompt()) as url:
        dialect = OpenAI(retokenise=lambda text: [int(word) for word in text.split()])
        subject = client(url, dialect, note="text only")
        lab = Lab(reference=by_prompt(), candidate=subject, inquiry=inquiry(2))
        found = diagnose(lab).finding
    assert found.cause is Cause.EXACT
    assert "candidate: text only" in found.reasons


FAULTS = (
    "bonus_dropped",
    "rows_exchanged",
    "eos_ignored_in_block",
    "stop_string_overshoot",
    "length_overshoot",
    "stream_reordered",
    "speculation_off",
)


@contextmanager
def two_servers(scenario: Scenario, name: str | None) -> Iterator[tuple[HttpSubject, HttpSubject]]:
    with ExitStack() as stack:
        plain = stack.enter_context(serving(scenario.reference()))
        fault = by_name(name) if name else None
        faulty = stack.enter_context(servers.fake_server(scenario.candidate(fault)))
        candidate = FakeServerClient(
            name=faulty.url,
            url=faulty.url,
            dialect=Vllm(),
            k=scenario.k,
            batch=scenario.batch,
            batcher=faulty.batcher,
        )
        yield client(plain, k=0, batch=1), candidate


def test_without_a_local_target_positions_are_not_guessed() -> None:
    scenario = quick_scenario(by_name("position_plus_one").condition)
    with two_servers(scenario, "position_plus_one") as (reference, candidate):
        lab = Lab(reference=reference, candidate=candidate, inquiry=scenario.inquiry)
        found = diagnose(lab).finding
    assert found.cause in (Cause.BUG, Cause.UNDECIDED), found
    assert found.kind in (None, Kind.UNKNOWN), found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_behind_a_server_gets_its_right_name(name: str) -> None:
    fault = by_name(name)
    scenario = quick_scenario(fault.condition)
    with two_servers(scenario, name) as (reference, candidate):
        lab = Lab(reference=reference, candidate=candidate, inquiry=scenario.inquiry)
        found = diagnose(lab).finding
    assert (found.cause, found.kind) == (Cause.BUG, fault.kind), found


def test_a_correct_server_raises_no_alarm() -> None:
    scenario = quick_scenario(Condition.PLAIN)
    with two_servers(scenario, None) as (reference, candidate):
        lab = Lab(reference=reference, candidate=candidate, inquiry=scenario.inquiry)
        found = diagnose(lab).finding
        assert lab.found.counters.speculating is True
    assert found.cause is Cause.EXACT


# -- servers that misbehave ------------------------------------------------------------------------


def against(server_fault: ServerFault, **options: Any) -> Diagnosis:
    """A reference in this process against a server that misbehaves."""
    with serving(by_prompt(), server_fault=server_fault) as url:
        candidate = client(url, **options)
        return diagnose(Lab(reference=by_prompt(), candidate=candidate, inquiry=inquiry(3)))


@pytest.mark.parametrize(
    ("server_fault", "said"),
    [
        (hangs(5.0), "timed out after"),
        (breaks(), "HTTP 500"),
        (truncates(), "no complete response"),
    ],
    ids=["hangs", "500", "truncates"],
)
def test_a_server_that_fails_gives_errors_per_row_and_no_verdict(
    server_fault: ServerFault, said: str
) -> None:
    # only the server that hangs is to run out of time, however busy the machine is
    diagnosis = against(server_fault, timeout=0.6 if said.startswith("timed out") else 30.0)
    assert diagnosis.finding.cause is Cause.UNDECIDED
    assert len(diagnosis.rows) == 3
    assert all(said in row.reasons[0] for row in diagnosis.rows.values())


@pytest.mark.parametrize("server_fault", [breaks(), truncates()], ids=["500", "truncates"])
def test_a_reference_that_fails_gives_errors_per_row_too(server_fault: ServerFault) -> None:
    with serving(by_prompt(), server_fault=server_fault) as url:
        lab = Lab(reference=client(url), candidate=by_prompt(), inquiry=inquiry(3))
        diagnosis = diagnose(lab)
    assert diagnosis.finding.cause is Cause.UNDECIDED
    assert all(row.reasons[0].startswith("reference: ") for row in diagnosis.rows.values())


def test_a_server_that_breaks_while_the_controls_run_gives_no_verdict() -> None:
    """The rows were answered and differ; the second question, of the A/A control, is not."""
    wrong = Canned(respond=lambda setup: [answer([1, 2, 99, 5], 5.0)])
    with serving(by_prompt(), server_fault=breaks(first=1)) as url:
        lab = Lab(reference=client(url), candidate=wrong, inquiry=inquiry(1))
        found = diagnose(lab).finding
    assert (found.cause, found.rule) == (Cause.UNDECIDED, "the reference does not repeat itself")


def test_a_server_that_breaks_half_way_says_which_rows() -> None:
    diagnosis = against(breaks(first=2), batch=1)
    assert diagnosis.finding.cause is Cause.UNDECIDED
    assert sorted(diagnosis.rows) == [2]


def test_a_server_that_changes_its_mind_is_undecided() -> None:
    diagnosis = against(fickle, batch=1)
    assert (diagnosis.finding.cause, diagnosis.finding.rule) == (
        Cause.UNDECIDED,
        "the candidate does not repeat itself",
    )


def test_agreement_by_luck_is_undecided_where_all_controls_run() -> None:
    """The first answer is right and every later one is another: equal rows say nothing then."""

    def lucky(number: int, response: Response) -> Response:
        return response if number == 0 else fickle(number, response)

    def cause(server_fault: ServerFault, which: Controls) -> Cause:
        with serving(by_prompt(), server_fault=server_fault) as url:
            seen = examine(by_prompt(), client(url, batch=1), inquiry(1), which=which)
        return seen.diagnosis.finding.cause

    assert cause(lucky, Controls.ALL) is Cause.UNDECIDED
    assert cause(honest, Controls.ALL) is Cause.EXACT
    assert cause(lucky, Controls.AUTO) is Cause.EXACT  # nobody asked twice


def test_a_float32_twin_that_fails_leaves_its_evidence_missing() -> None:
    right, wrong = [answer([1, 2, 3, 4], 0.0625)], [answer([1, 2, 99, 5], 0.0625)]
    with ExitStack() as stack:
        plain, forked = (
            stack.enter_context(serving(Canned(respond=lambda setup, rows=rows: rows)))
            for rows in (right, wrong)
        )
        nobody = "http://127.0.0.1:1"
        reference = client(plain, k=0, float32=nobody)
        candidate = client(forked, k=3, float32=nobody)
        lab = Lab(reference=reference, candidate=candidate, inquiry=inquiry(1))
        found = diagnose(lab).finding
    assert found.cause is not Cause.BUG
    assert "gone in float32" not in found.reasons
    assert found.missing


def test_an_honest_server_is_not_accused() -> None:
    assert against(honest).finding.cause is Cause.EXACT  # negative control of the three above


def test_no_server_at_all_is_an_error_per_row() -> None:
    run = client("http://127.0.0.1:1", timeout=1.0).run(inquiry(2))
    assert all("ConnectError" in (a.error or "") for a in run.answers)


def test_requests_are_bounded_in_number() -> None:
    with serving(by_prompt()) as url:
        subject = client(url, LlamaCpp(), batch=1, budget=Budget(requests=2))
        run = subject.run(inquiry(3))
    assert [a.error is None for a in run.answers] == [True, True, False]
    assert "budget of 2 requests" in (run.answers[2].error or "")


def test_requests_are_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = Budget(seconds=5)
    assert budget.refusal() is None
    now[0] += 6
    assert "budget of 5 s" in (budget.refusal() or "")


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_is_sent_and_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-very-secret")
    with serving(by_prompt()) as url:
        subject = client(url)
        with subject._client() as opened:
            assert opened.headers["authorization"] == "Bearer sk-very-secret"
        report = examine(by_prompt(), subject, inquiry(2)).as_dict()
    assert "sk-very-secret" not in json.dumps(report) + render(report)


def test_a_password_in_a_url_is_refused() -> None:
    with pytest.raises(InputError, match=KEY_VARIABLE):
        client("http://user:secret@127.0.0.1:1")
    with pytest.raises(InputError, match=KEY_VARIABLE):
        client("http://127.0.0.1:1", float32="http://user:secret@127.0.0.1:2")


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "body", "said"),
    [
        (Vllm(), {"choices": []}, "no choices.0"),
        (Vllm(), {"choices": [{"text": "x"}]}, "no token_ids"),
        (Vllm(), {"choices": [{"token_ids": ["1"]}]}, "list of token ids"),
        (Sglang(), [], "no output_ids"),
        (LlamaCpp(), {"tokens": None}, "list of token ids"),
        (OpenAI(retokenise=list), {"choices": [{"text": 3}]}, "expected a text"),
    ],
)
def test_an_answer_of_another_shape_is_an_error(dialect: Dialect, body: Any, said: str) -> None:
    with pytest.raises(BadAnswerError, match=said):
        dialect.reply(body)


def test_llama_cpp_says_in_its_timings_whether_it_speculates() -> None:
    plain = LlamaCpp().reply({"tokens": [1], "timings": {"predicted_n": 1}})
    drafted = LlamaCpp().reply({"tokens": [1], "timings": {"draft_n": 8, "draft_n_accepted": 5}})
    assert (plain.drafted, drafted.drafted, drafted.accepted) == (0, 8, 5)
    assert LlamaCpp().reply({"tokens": [1]}).drafted is None


def test_metrics_without_speculation_mean_off_and_no_metrics_mean_unknown() -> None:
    before = prometheus('vllm:spec_decode_num_draft_tokens_total{m="x"} 8.0\nvllm:other 1\n')
    after = prometheus('vllm:spec_decode_num_draft_tokens_total{m="x"} 20.0\nvllm:other 2\n')
    assert counted(before, after).drafted == 12
    assert counted({"other": 1}, {"other": 2}).speculating is False
    assert counted({}, {}).speculating is None


def test_a_failed_row_keeps_its_error() -> None:
    assert Answer(error="x").ids == ()
