"""Auto-K on scripted machines: what is chosen, what it costs, and that tokens stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftproof.auto_k.auto import Auto
from draftproof.auto_k.state import AutoKState
from draftproof.engine.schedule import CONSTANT, Schedule
from draftproof.testing.simulation import (
    Clock,
    Cost,
    Machine,
    Right,
    SlowAtFirst,
    UneasyClock,
)

MOST = 8
FIXED = (0, 1, 2, 3, 4, 6, 8)  # the K that auto is held against, the best one picked afterwards


def flat(tokens: int) -> float:
    """Reading the weights is nearly all of it."""
    return 0.02 + 0.0003 * tokens


def step(tokens: int) -> float:
    """Up to 40 rows cost the same, as in a tiled matrix product."""
    return 0.02 * (1 if tokens <= 40 else 1 + 0.02 * (tokens - 40))


def arithmetic(tokens: int) -> float:
    """Every token costs."""
    return 0.02 + 0.0015 * tokens


TARGETS: dict[str, Cost] = {"flat": flat, "step": step, "arithmetic": arithmetic}
# how often a draft is right, and what a step costs: good, medium, bad, useless, too dear
DRAFTS = [(0.85, 0.1), (0.85, 0.25), (0.6, 0.1), (0.1, 0.25), (0.0, 0.25), (0.85, 1.5)]
GRID = [(t, b, *draft) for t in TARGETS for b in (1, 2, 4, 8, 16, 32) for draft in DRAFTS]
QUICK = [
    ("flat", 4, 0.6, 0.1),
    ("flat", 32, 0.85, 0.25),
    ("step", 4, 0.85, 0.1),
    ("step", 16, 0.85, 1.5),
    ("arithmetic", 8, 0.1, 0.25),
    ("arithmetic", 16, 0.0, 0.25),
]


def machine(target: str, batch_size: int, right: Right, cost: float) -> Machine:
    """cost: of a draft step, in steps of a target that reads its weights."""
    return Machine(
        target=TARGETS[target],
        draft=lambda tokens: cost * flat(tokens),
        right=right,
        batch_size=batch_size,
        requests=max(24, 3 * batch_size // 2),
        max_new_tokens=96,
    )


def speeds(work: Machine, schedule: Schedule | None, most: int, **weather: Any) -> list[float]:
    """Tokens per second of a first run and of one after it; no schedule: auto's.

    weather: of the clocks, see `UneasyClock`
    """
    state, found = AutoKState(), []
    for run in range(2):
        clock = UneasyClock(seed=run, **weather)
        chosen = schedule or Auto(state=state, now=clock.now)
        found.append(work.speed(chosen, most, clock))
    return found


def shares(make: Callable[[], Machine], **weather: Any) -> tuple[float, float]:
    """Auto's speed in that of the fixed K that was fastest: of first runs, and of second ones."""
    fixed = [speeds(make(), CONSTANT, drafts, **weather) for drafts in FIXED]
    cold, warm = speeds(make(), None, MOST, **weather)
    return cold / max(speed[0] for speed in fixed), warm / max(speed[1] for speed in fixed)


# -- against the best fixed K ---------------------------------------------------------------------


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_auto_is_as_fast_as_the_best_fixed_k(case: tuple[str, int, float, float]) -> None:
    cold, warm = shares(lambda: machine(*case))
    assert warm > 0.97
    assert cold > 0.94


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in GRID if case not in QUICK], ids=str)
def test_auto_is_as_fast_as_the_best_fixed_k_everywhere(
    case: tuple[str, int, float, float],
) -> None:
    cold, warm = shares(lambda: machine(*case))
    assert warm > 0.97
    assert cold > 0.94


# -- on machines that are less obliging -----------------------------------------------------------

NOISE = {"noise": 0.15, "hiccups": 0.02}


def mixed(request: int, position: int) -> float:
    """Every other request is easy to guess."""
    return 0.9 if request % 2 else 0.2


def slow_at_first(work: Machine) -> Machine:
    """A new machine whose kernels are set up when they are first called."""
    return replace(work, target=SlowAtFirst(work.target), draft=SlowAtFirst(work.draft))


@pytest.mark.parametrize(("target", "batch_size"), [("flat", 4), ("arithmetic", 8)])
def test_noise_costs_little(target: str, batch_size: int) -> None:
    _, warm = shares(lambda: machine(target, batch_size, 0.85, 0.25), **NOISE)
    assert warm > 0.95


def test_a_machine_that_turns_slow_and_quick_again() -> None:
    _, warm = shares(lambda: machine("flat", 8, 0.85, 0.25), noise=0.05, swings=1.0)
    assert warm > 0.97


def test_first_calls_that_are_slow() -> None:
    _, warm = shares(lambda: slow_at_first(machine("flat", 8, 0.85, 0.25)))
    assert warm > 0.95


def test_rows_that_differ_draft_differently() -> None:
    """No fixed K suits both kinds."""
    _, warm = shares(lambda: machine("flat", 2, mixed, 0.1), **NOISE)
    assert warm > 1.03


# A target of 450M parameters and a draft of 135M on two cores: seconds by tokens.
BIG = {1: 0.0285, 5: 0.033, 8: 0.044, 20: 0.053, 24: 0.065, 40: 0.081, 512: 1.02}
SMALL = {1: 0.010, 5: 0.0103, 8: 0.0135, 20: 0.0162, 24: 0.019, 40: 0.0242, 512: 0.3}


def between(table: dict[int, float]) -> Cost:
    """Straight lines from one count to the next."""
    points = list(table.items())

    def cost(tokens: int) -> float:
        for (low, bottom), (high, top) in zip(points, points[1:], strict=False):
            if tokens <= high:
                return bottom + (top - bottom) * (tokens - low) / (high - low)
        raise ValueError(f"{tokens} tokens in one forward")

    return cost


@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_a_short_run_of_a_real_pair(batch_size: int) -> None:
    """Prompts of 20 to 300 tokens, 48 new ones each: what is learned must pay within the run."""
    draw = random.Random(3)
    work = Machine(
        target=between(BIG),
        draft=between(SMALL),
        right=0.8,
        batch_size=batch_size,
        requests=24,
        prompt=[draw.randint(20, 300) for _ in range(24)],
        max_new_tokens=48,
    )
    cold, warm = shares(lambda: work, **NOISE)
    assert cold > 0.93
    assert warm > 0.95


# -- what is chosen -------------------------------------------------------------------------------


def test_k_follows_the_batch() -> None:
    """Where every token costs, a full batch has no room for drafts that a single row has."""
    drafts = {}
    for size in (1, 32):
        work, state, clock = machine("arithmetic", size, 0.7, 0.2), AutoKState(), Clock()
        rounds = list(work.run(Auto(state=state, now=clock.now), MOST, clock))
        drafts[size] = sum(map(sum, rounds)) / sum(map(len, rounds))
    assert drafts[1] > 1
    assert drafts[32] < 0.1


def test_drafts_that_become_good_are_noticed() -> None:
    work = Machine(
        target=flat,
        draft=lambda tokens: 0.05 * flat(tokens),
        right=lambda _, position: float(position > 400),
        batch_size=2,
        requests=2,
        prompt=8,
        max_new_tokens=1200,
    )
    clock = Clock()
    rounds = list(work.run(Auto(now=clock.now), MOST, clock))
    early, late = rounds[50:350], rounds[-20:-2]
    assert sum(map(sum, early)) / len(early) < 0.5
    assert sum(map(sum, late)) / len(late) > 4


def test_a_draft_that_costs_nothing_is_used_at_any_acceptance() -> None:
    work, clock = machine("step", 2, 0.3, 0.0001), Clock()
    rounds = list(work.run(Auto(now=clock.now), MOST, clock))
    assert sum(map(sum, rounds)) / sum(map(len, rounds)) > 2


def test_costs_are_learned_once() -> None:
    """The second run knows what the first one had to try."""
    work, state = machine("flat", 8, 0.85, 1.5), AutoKState()
    drafts = []
    for _ in range(2):
        clock = Clock()
        rounds = list(work.run(Auto(state=state, now=clock.now), MOST, clock))
        drafts.append(sum(map(sum, rounds[:8])))
    assert drafts[0] > 0 == drafts[1]
