"""Adaptive K: the estimate, the choice, and its limits."""

from __future__ import annotations

import pytest

from draftproof.engine.schedule import CONSTANT, Adaptive
from draftproof.types import SpecStats


def stats(*rounds: tuple[int, int]) -> SpecStats:
    """Counters after rounds of (drafted, accepted)."""
    found = SpecStats()
    for drafted, accepted in rounds:
        found.record(drafted=drafted, accepted=accepted, kept=accepted + 1)
    return found


def test_constant_is_constant() -> None:
    assert CONSTANT.choose([], [4, 0], 0) == [4, 0]


def test_k_follows_the_rows_own_acceptance() -> None:
    adaptive = Adaptive()
    good, bad = stats(*[(8, 8)] * 10), stats(*[(8, 0)] * 40)
    assert adaptive.wanted(good, 8) == 8
    assert adaptive.wanted(bad, 8) == 1
    assert 1 < adaptive.wanted(stats(*[(8, 4), (8, 1)] * 10), 8) < 8


def test_k_recovers() -> None:
    adaptive = Adaptive()
    rounds = [(8, 0)] * 5
    assert adaptive.wanted(stats(*rounds), 8) < 3
    assert adaptive.wanted(stats(*rounds, *[(2, 2)] * 60), 8) > 4


def test_k_stays_within_its_limits() -> None:
    adaptive = Adaptive()
    assert adaptive.wanted(stats(*[(4, 0)] * 50), 4) == 1
    assert adaptive.wanted(stats((4, 4)), 0) == 0
    assert adaptive.wanted(stats(), 1) == 1


@pytest.mark.parametrize("cost", [0.02, 0.1, 0.5])
def test_the_choice_is_the_fastest(cost: float) -> None:
    """Against the formula summed term by term."""
    adaptive = Adaptive(cost=cost)
    found = stats(*[(6, 3)] * 4)
    rate = adaptive.acceptance(found)
    speeds = {k: sum(rate**i for i in range(k + 1)) / (k * cost + 1) for k in range(1, 7)}
    assert adaptive.wanted(found, 6) == max(speeds, key=lambda k: speeds[k])


def test_dearer_drafts_are_fewer() -> None:
    found = stats(*[(6, 3)] * 4)
    chosen = [Adaptive(cost=cost).wanted(found, 6) for cost in (0.01, 0.1, 0.3, 1.0)]
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] > chosen[-1]
