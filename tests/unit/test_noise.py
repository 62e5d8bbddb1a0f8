"""The random numbers: good enough to sample from, and the same in any shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from draftproof.processing.noise import Draw, exponential, position_key, race, stream_key, uniform

CPU = torch.device("cpu")
VOCAB = 1 << 12
LEVEL = 1e-4  # everything is seeded: a test passes always or never


def position_keys(count: int, *, seed: int = 1, draw: Draw = Draw.CHOICE) -> list[int]:
    stream = stream_key(seed, [5, 6, 7])
    return [position_key(stream, position, draw) for position in range(count)]


def to_uniform(noise: torch.Tensor) -> np.ndarray:
    """Exponential numbers through their own distribution function: uniform if they are right."""
    return -np.expm1(-noise.double().numpy())


def weak(keys: list[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """A generator that forgets to mix: what the tests below must reject."""
    low = torch.tensor([key & 0xFFFF for key in keys])[:, None]
    u = ((torch.arange(vocab_size) * 40503 + low) % 65536 + 0.5) / 65536
    return -torch.log1p(-u)


def uniformity(make: Callable[..., torch.Tensor]) -> float:
    """p-value of 1,024 equally likely bins over 64 positions."""
    u = to_uniform(make(position_keys(64), VOCAB, CPU)).ravel()
    return float(stats.chisquare(np.bincount((u * 1024).astype(int), minlength=1024)).pvalue)


def pairs_uniformity(make: Callable[..., torch.Tensor], pair: str) -> float:
    """p-value of 32 x 32 bins for numbers that are neighbours in some sense."""
    u = to_uniform(make(position_keys(65), VOCAB, CPU))
    one, two = {
        "next token": (u[:, :-1], u[:, 1:]),
        "next position": (u[:-1], u[1:]),
        "one further": (u[:, :-2], u[:, 2:]),
        "power of two further": (u[:, :-256], u[:, 256:]),
    }[pair]
    bins = (one * 32).astype(int) * 32 + (two * 32).astype(int)
    return float(stats.chisquare(np.bincount(bins.ravel(), minlength=1024)).pvalue)


def test_uniform_over_tokens_and_positions() -> None:
    assert LEVEL < uniformity(exponential) < 1 - LEVEL


def test_a_generator_that_does_not_mix_is_rejected() -> None:
    assert min(uniformity(weak), 1 - uniformity(weak)) < LEVEL


@pytest.mark.parametrize(
    "pair", ["next token", "next position", "one further", "power of two further"]
)
def test_neighbours_are_independent(pair: str) -> None:
    assert pairs_uniformity(exponential, pair) > LEVEL
    assert pairs_uniformity(weak, pair) < LEVEL


@pytest.mark.parametrize("tail", [1e-2, 1e-4])
def test_the_tail_that_decides_a_race_is_right(tail: float) -> None:
    """The winner among many tokens comes from the earliest times."""
    u = to_uniform(exponential(position_keys(512), VOCAB, CPU)).ravel()
    early = u[u < tail]
    assert stats.binomtest(len(early), len(u), tail).pvalue > LEVEL
    assert stats.kstest(early / tail, "uniform").pvalue > LEVEL


def test_every_token_wins_equally_often() -> None:
    times = exponential(position_keys(20_000), 200, CPU)
    winners = race(torch.ones_like(times), times)
    assert stats.chisquare(torch.bincount(winners, minlength=200).numpy()).pvalue > LEVEL


def test_purposes_and_seeds_are_independent() -> None:
    streams = [
        exponential(position_keys(64), VOCAB, CPU),
        exponential(position_keys(64, draw=Draw.DRAFT), VOCAB, CPU),
        exponential(position_keys(64, draw=Draw.ACCEPT), VOCAB, CPU),
        exponential(position_keys(64, seed=2), VOCAB, CPU),
    ]
    correlation = np.corrcoef([to_uniform(noise).ravel() for noise in streams])
    off = np.abs(correlation[~np.eye(4, dtype=bool)])
    assert off.max() < 5 / np.sqrt(64 * VOCAB)  # five standard deviations


def test_acceptance_numbers_are_uniform_and_below_one() -> None:
    u = uniform(position_keys(20_000, draw=Draw.ACCEPT), CPU)
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > LEVEL


def test_numbers_do_not_depend_on_the_shape_they_are_computed_in() -> None:
    """Bit for bit: neither on other positions nor on the vocabulary's padding."""
    keys = position_keys(9)
    whole = exponential(keys, 1003, CPU)
    for first in (0, 1, 4, 8):
        for count in (1, 2, 3):
            part = exponential(keys[first : first + count], 1003, CPU)
            assert torch.equal(part, whole[first : first + count])
    for vocab_size in (1, 3, 96, 1000, 1002):
        assert torch.equal(exponential(keys, vocab_size, CPU), whole[:, :vocab_size])


def test_a_stream_is_known_by_seed_prompt_and_sequence() -> None:
    base = stream_key(1, [1, 2, 3])
    assert base == stream_key(1, [1, 2, 3], 0)
    others = [
        stream_key(2, [1, 2, 3]),
        stream_key(1, [1, 2, 3], 1),
        stream_key(1, [1, 2]),
        stream_key(1, [3, 2, 1]),
        stream_key(-1, [1, 2, 3]),
    ]
    assert len({base, *others}) == 6


def test_extreme_bits_stay_finite_and_positive() -> None:
    """Neither 0 nor infinity may reach the race, which divides by the times."""
    times = exponential(position_keys(500), VOCAB, CPU)
    assert torch.isfinite(times).all()
    assert 0 < times.min() < 1e-5
    assert 10 < times.max() < 16.7


def test_a_race_draws_in_proportion() -> None:
    weights = torch.tensor([0.125, 0.0, 0.625, 0.25])
    times = exponential(position_keys(50_000), 4, CPU)
    counts = torch.bincount(race(weights, times), minlength=4).numpy()
    assert counts[1] == 0
    kept = weights > 0
    assert stats.chisquare(counts[kept], weights[kept].numpy() * 50_000).pvalue > LEVEL
