"""The parts of the benchmark, each alone: prompts, numbers, clocks, the results file."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from draftproof.bench.clocks import REALIGN, Stopwatch, TimedExecutor
from draftproof.bench.journal import Journal
from draftproof.bench.metrics import (
    acceptance_by_position,
    acceptance_per_token,
    expected_emitted,
    partial_match,
    percentile,
    predicted_speedup,
    wilson,
)
from draftproof.bench.workloads import (
    balanced,
    built_in,
    equal_lengths,
    poisson_arrivals,
    random_lengths,
    spec_bench,
)
from draftproof.errors import InputError

# -- prompts ---------------------------------------------------------------------------------------


def test_prompts_are_spread_over_the_categories() -> None:
    some = balanced(built_in(), 6)
    assert Counter(q.category for q in some) == {"story": 2, "explanation": 2, "list": 1, "code": 1}
    with pytest.raises(InputError, match="99 prompts wanted, 12 there"):
        built_in(99)


def test_spec_bench_lines_become_questions(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    rows = [{"question_id": 81, "category": "writing", "turns": ["One", "Two"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (question,) = spec_bench(file)
    assert (question.number, question.category, question.text) == (81, "writing", "One")


@pytest.mark.parametrize("line", ["{}", "[]", "not json", '{"turns": []}', '{"turns": 3}'])
def test_other_lines_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match="line 1 is no Spec-Bench question"):
        spec_bench(file)


@pytest.mark.shared
def test_the_whole_of_spec_bench_is_read(shared_folder: Path) -> None:
    questions = spec_bench(shared_folder / "data" / "spec_bench" / "question.jsonl")
    assert len(questions) == 480
    assert len({q.category for q in questions}) == 13


def test_prompts_are_brought_to_length() -> None:
    assert equal_lengths([[1, 2, 3], [4]], 4) == [[1, 2, 3, 1], [4, 4, 4, 4]]
    lengths = [len(p) for p in random_lengths([[1]] * 50, 3, 9, seed=1)]
    assert set(lengths) == set(range(3, 10))
    assert lengths == [len(p) for p in random_lengths([[1]] * 50, 3, 9, seed=1)]


def test_arrivals_are_poisson_and_repeatable() -> None:
    times = poisson_arrivals(2000, rate=4.0, seed=7)
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times == poisson_arrivals(2000, rate=4.0, seed=7)
    # the mean of 2,000 waits of mean 1/4 has a standard deviation of 1/4 / sqrt(2,000)
    assert times[-1] / 1999 == pytest.approx(0.25, abs=4 * 0.25 / math.sqrt(1999))


# -- numbers ---------------------------------------------------------------------------------------


def test_wilson_interval_against_published_values() -> None:
    """Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_partial_match_is_the_share_before_the_first_difference() -> None:
    assert partial_match([1, 2, 9, 4], [1, 2, 3, 4]) == 0.5
    assert partial_match([1, 2], [1, 2, 3, 4]) == 0.5
    assert partial_match([1, 2, 3, 4], [1, 2]) == 0.5
    assert partial_match([], []) == 1.0


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([3.0], 0.99) == 3.0


def test_acceptance_is_recovered_from_rounds_that_end_at_a_rejection() -> None:
    """K = 4, a = 1/2 exactly: of 16 rounds 8, 4, 2, 1 accept 0, 1, 2, 3 and one accepts all."""
    histogram = [8, 4, 2, 1, 1]
    accepted = sum(count * place for place, count in enumerate(histogram))
    assert acceptance_per_token(accepted, rounds=16, full_rounds=1) == 0.5
    assert 1 + accepted / 16 == expected_emitted(0.5, 4)
    assert acceptance_by_position(histogram, 4) == [1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert expected_emitted(1.0, 4) == 5.0
    assert predicted_speedup(0.5, 4, cost=0.1) == pytest.approx(1.9375 / 1.4)


# -- clocks ----------------------------------------------------------------------------------------


def test_inner_spans_are_not_counted_twice() -> None:
    ticks = iter([0.0, 1.0, 3.0, 7.0, 12.0, 20.0])
    watch = Stopwatch(now=lambda: next(ticks))
    with watch.span("outer"):  # 0
        with watch.span("inner"):  # 1 .. 3
            pass
        with watch.span("inner"):  # 7 .. 12
            pass
    assert watch.seconds == {"outer": 1 + 4 + 8, "inner": 2 + 5}


def test_realignment_is_timed_from_outside() -> None:
    calls = []

    class Executor:
        lengths = (3,)

        def realign(self, tokens: str) -> None:
            calls.append(("realign", tokens))

        def forward(self, tokens: str) -> str:
            calls.append(("forward", tokens))
            return "logits"

    ticks = iter([0.0, 5.0, 5.0, 6.0])
    watch = Stopwatch(now=lambda: next(ticks))
    timed = TimedExecutor(Executor(), watch, "verify")
    assert timed.forward("tokens") == "logits"
    assert calls == [("realign", "tokens"), ("forward", "tokens")]
    assert watch.seconds == {REALIGN: 5.0, "verify": 1.0}
    assert timed.lengths == (3,)


# -- the results file ------------------------------------------------------------------------------


def test_the_last_record_of_a_key_counts_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out" / "results.jsonl")
    assert journal.records() == []
    journal.append({"key": "a", "status": "crash"})
    journal.append({"key": "b", "status": "ok"})
    with journal.path.open("a") as file:
        file.write('{"key": "c", "sta')
    journal.append({"key": "a", "status": "ok"})
    assert journal.records() == [{"key": "a", "status": "ok"}, {"key": "b", "status": "ok"}]
