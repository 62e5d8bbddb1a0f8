"""`draftproof demo` with a scripted pair; test_cli_process.py runs it on the embedded models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftproof.models import DEMO_PROMPTS

from .cli_fakes import FakePair, invoke, use


class DemoPair(FakePair):
    max_model_len = 10_000

    def encode(self, prompt: Any) -> list[int]:
        return super().encode(prompt)[:200]


def test_equal_tokens_exit_0(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = use(monkeypatch, DemoPair())
    run = invoke("demo", "--max-new-tokens", 7)
    assert run.exit_code == 0
    assert run.stdout.count("8/8") == 3
    for words in ("plain, 1 row ", "plain, 8 rows", "speculative, 8 rows", "1.00x", "75.0%"):
        assert words in run.stdout
    asked = [
        (c["max_num_seqs"], c["num_speculative_tokens"], c["max_new_tokens"]) for c in pair.calls
    ]
    assert asked[:3] == [(1, 0, 2), (8, 0, 2), (8, 4, 2)]  # each way is warmed up
    assert asked[3:] == [(1, 0, 7), (8, 0, 7), (8, 4, 7)]
    models = pair.opened_with
    assert models is not None
    assert (models.dtype, models.draft is None) == ("float32", False)


def test_the_report_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DemoPair())
    report = json.loads(invoke("demo", "--json", "--num-speculative-tokens", 2).stdout)
    assert report["equal"] is True
    assert len(report["texts"]) == len(DEMO_PROMPTS)
    assert [run["exact"] for run in report["runs"]] == [8, 8, 8]
    assert report["runs"][2]["stats"]["draft_acceptance_rate"] == 0.75


def test_differing_rows_are_named_and_exit_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(ids: list[int], options: dict[str, Any]) -> list[int]:
        return [*ids[:-1], 42] if options["num_speculative_tokens"] and ids[0] % 2 else ids

    pair = use(monkeypatch, DemoPair(tamper=wrong))
    run = invoke("demo", "--json")
    differing = json.loads(run.stdout)["runs"][2]["differing_rows"]
    expected = [i for i, p in enumerate(DEMO_PROMPTS) if (97 + sum(pair.encode(p)) % 26) % 2]
    assert (run.exit_code, differing) == (1, expected)
    assert 0 < len(expected) < 8
    named = ", ".join(map(str, expected))
    assert f"speculative, 8 rows: other tokens in row {named}" in run.stderr
