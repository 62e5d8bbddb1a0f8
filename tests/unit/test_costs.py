"""Learned costs: what was measured, what lies between, and what is not believed."""

from __future__ import annotations

import math
import random

import pytest

from draftproof.auto_k.acceptance import ALIKE, APART, Acceptance, DecidedDrafts, Spread
from draftproof.auto_k.costs import Costs
from draftproof.auto_k.timing import PhaseTimer
from draftproof.phases import Phase


def costs(**measured: float) -> Costs:
    """Two measurements of each: `n5=0.1` is 0.1 s for 5 tokens."""
    found = Costs()
    for name, seconds in measured.items():
        for _ in range(2):
            found.observe(int(name[1:]), seconds)
    return found


def test_nothing_is_known_at_first() -> None:
    assert Costs().seconds(5) == 0
    assert not Costs().known


def test_between_two_counts_lies_a_straight_line() -> None:
    found = costs(n4=0.1, n8=0.3)
    assert found.seconds(6) == pytest.approx(0.2)
    assert found.seconds(12) == pytest.approx(0.5)


def test_a_step_stays_a_step() -> None:
    found = costs(n8=0.1, n40=0.1, n44=0.2)
    assert found.seconds(23) == pytest.approx(0.1)
    assert found.seconds(40) == pytest.approx(0.1)
    assert found.seconds(44) == pytest.approx(0.2)


def test_more_tokens_never_take_less_time() -> None:
    found = costs(n4=0.1, n6=0.3, n8=0.2, n10=0.4)
    seconds = [found.seconds(n) for n in range(1, 20)]
    assert seconds == sorted(seconds)
    assert found.seconds(6) == pytest.approx(0.25)


def test_a_first_slow_call_is_tried_again() -> None:
    found = costs(n8=0.1)
    found.observe(40, 30.0)  # kernels were compiled
    assert found.seconds(40) < 0.2
    found.observe(40, 0.15)
    assert found.seconds(40) == pytest.approx(0.15)


def test_a_first_quick_call_is_believed() -> None:
    found = costs(n512=0.4)
    found.observe(32, 0.01)
    assert found.seconds(32) == pytest.approx(0.01)


def test_a_hiccup_changes_little() -> None:
    found = costs(n8=0.1)
    for seconds in (0.1, 0.1, 60.0, 0.1):
        found.observe(8, seconds)
    assert found.seconds(8) == pytest.approx(0.1, rel=0.15)


def test_a_slower_machine_is_slower_at_every_count() -> None:
    found = costs(n8=0.1, n40=0.2)
    for _ in range(60):
        found.observe(8, 0.3)
    assert found.seconds(8) == pytest.approx(0.3, rel=0.1)
    assert found.seconds(40) >= found.seconds(8)


def test_one_jump_of_the_pace_moves_all_costs_at_once() -> None:
    """What was measured before the jump was noticed is not held against its token count."""
    found = costs(n8=0.1, n40=0.2)
    for seconds in [0.1] * 3 + [0.2] * 4:
        found.observe(8, seconds)
    assert found.speed.factor == pytest.approx(2, rel=0.1)
    assert found.seconds(8) == pytest.approx(0.2, rel=0.05)
    assert found.seconds(40) == pytest.approx(0.4, rel=0.05)


def test_noise_is_averaged_over_neighbours() -> None:
    draw, found = random.Random(5), Costs()
    for _ in range(50):
        for tokens in range(1, 10):
            found.observe(tokens, (0.03 + 0.001 * tokens) * math.exp(draw.gauss(0, 0.15)))
    for tokens in range(1, 10):
        assert found.seconds(tokens) == pytest.approx(0.03 + 0.001 * tokens, rel=0.08)


def test_fewer_tokens_than_ever_are_thought_quick() -> None:
    """So that plain decoding is tried where it may well win."""
    found = Costs()
    found.observe(40, 0.1)
    assert found.seconds(8) < 0.06
    assert 0 < found.seconds(1) < found.seconds(2)


def test_rows_that_differ_count_for_themselves() -> None:
    alike, apart = Spread(), Spread()
    for number in range(30):
        alike.add(DecidedDrafts(accepted=14 + number % 3, rejected=6 - number % 3), 0.75)
        apart.add(
            DecidedDrafts(accepted=20.0 * (number % 4 > 0), rejected=20.0 * (number % 4 == 0)), 0.75
        )
    assert alike.weight == pytest.approx(ALIKE)
    assert apart.weight == pytest.approx(APART)


def test_memory_fades_and_keeps_its_rate() -> None:
    memory = DecidedDrafts()
    for _ in range(50):
        memory.add(3, 1, most=40)
    assert memory.weight == pytest.approx(40)
    assert memory.accepted / memory.weight == pytest.approx(0.75)


def test_rates_of_nothing_are_the_first_guess() -> None:
    assert Acceptance().pool.accepted / Acceptance().pool.weight == pytest.approx(0.7)


def test_a_part_ends_where_the_next_begins() -> None:
    times, seen = iter([0.0, 1.0, 3.0, 7.0]), []
    timer = PhaseTimer(record=lambda *what: seen.append(what), now=lambda: next(times))
    timer.enter(Phase.HOST, 5)
    timer.enter(Phase.DRAFT, 2)
    timer.enter(Phase.VERIFY, 6)
    timer.finish()
    timer.finish()  # nothing is open
    assert seen == [(Phase.HOST, 5, 1.0), (Phase.DRAFT, 2, 2.0), (Phase.VERIFY, 6, 4.0)]


def test_a_round_without_tokens_is_not_timed() -> None:
    seen: list[object] = []
    timer = PhaseTimer(record=lambda *what: seen.append(what), now=lambda: 0.0)
    timer.enter(Phase.HOST, 1)
    timer.enter(Phase.HOST, 1)
    assert seen == []


def test_where_the_clock_waits_few_rounds_are_timed() -> None:
    seen: list[Phase] = []
    timer = PhaseTimer(
        record=lambda phase, *_: seen.append(phase), now=lambda: 0.0, wait=lambda: None, every=16
    )
    for _ in range(64 + 160):
        timer.enter(Phase.HOST, 1)
        timer.enter(Phase.VERIFY, 1)
        timer.finish()
    assert len(seen) == 2 * (64 + 10)
