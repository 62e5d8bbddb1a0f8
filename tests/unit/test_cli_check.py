"""`draftproof check` with a scripted pair that is right, or wrong in a known way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.cli.check import parse_sizes
from draftproof.errors import InputError

from .cli_fakes import FakePair, invoke, use


def check(*arguments: object, stdin: str | bytes | None = None) -> Any:
    base = ("check", "--target", "T", "--draft", "D", "--max-new-tokens", 4)
    return invoke(*base, *arguments, stdin=stdin)


def wrong_in_batches_of_4(ids: list[int], options: dict[str, Any]) -> list[int]:
    return [*ids[:3], 42] if options["max_num_seqs"] == 4 else ids


def test_equal_tokens_exit_0(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = use(monkeypatch, FakePair())
    run = check("--batch-sizes", "1,2", "--json", "-", stdin="a\nbc\n")
    report = json.loads(run.stdout)
    assert (run.exit_code, report["equal"]) == (0, True)
    assert [(t["batch_size"], t["exact"], t["partial"]) for t in report["trials"]] == [
        (1, 2, 1.0),
        (2, 2, 1.0),
    ]
    asked = [(call["max_num_seqs"], call["num_speculative_tokens"]) for call in pair.calls]
    assert asked == [(1, 0), (1, 4), (2, 4)]  # the reference is plain and alone


def test_a_difference_exits_1_and_is_located(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, FakePair(tamper=wrong_in_batches_of_4))
    file = tmp_path / "report.json"
    run = check("--batch-sizes", "1,4", "--json", file, stdin="a\nbc\n")
    report = json.loads(file.read_text())
    assert (run.exit_code, report["equal"]) == (1, False)
    good, bad = report["trials"]
    assert (good["exact"], good["partial"], good["divergences"]) == (2, 1.0, [])
    assert (bad["exact"], bad["partial"]) == (0, 0.75)
    expected = 97 + (97 + 21) % 26
    assert bad["divergences"][0] == {"row": 0, "position": 3, "expected": expected, "found": 42}
    assert f"batch 4, line 1: token 3: expected {expected} {chr(expected)!r}, found 42 '*'" in (
        run.stdout
    )
    assert "0/2" in run.stdout
    assert "75.0%" in run.stdout


def test_a_row_that_ends_early_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakePair(tamper=lambda ids, o: ids[: 4 - o["num_speculative_tokens"] // 4]))
    run = check("--batch-sizes", "1", stdin="a\n")
    assert run.exit_code == 1
    assert "found the end" in run.stdout


def test_almost_all_is_never_shown_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_of_one(ids: list[int], options: dict[str, Any]) -> list[int]:
        return ids if options["num_speculative_tokens"] == 0 else [*ids[:-1], 42]

    use(monkeypatch, FakePair(tamper=last_of_one))
    run = invoke(
        *("check", "--target", "T", "--max-new-tokens", 5000, "--batch-sizes", "1"), stdin="a\n"
    )
    assert "99.9%" in run.stdout
    assert "100.0%" not in run.stdout


@pytest.mark.parametrize(
    "stdin", ['{"prompt": "a"}\n{torn\n', '{"prompt": "a"}\n{"prompt": [999]}']
)
def test_a_check_never_leaves_prompts_out(monkeypatch: pytest.MonkeyPatch, stdin: str) -> None:
    pair = use(monkeypatch, FakePair())
    run = check(stdin=stdin)
    assert (run.exit_code, pair.calls) == (2, [])
    assert "line 2: " in run.stderr
    assert "1 of 2 prompts cannot be used" in run.stderr


@pytest.mark.parametrize("sizes", ["", "0", "1,,2", "a", "-1", "1;2"])
def test_bad_batch_sizes_are_usage_errors(monkeypatch: pytest.MonkeyPatch, sizes: str) -> None:
    use(monkeypatch, FakePair())
    assert check(f"--batch-sizes={sizes}", stdin="a\n").exit_code == 2
    with pytest.raises(InputError):
        parse_sizes(sizes)


def test_batch_sizes_keep_their_order_and_come_once() -> None:
    assert parse_sizes("8, 1,8") == [8, 1]
