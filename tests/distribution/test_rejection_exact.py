"""The rejection rule, enumerated: no draws, no tolerance but float32's own."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftproof.verifiers.rejection import accept_or_replace, is_accepted, remainder

TOLERANCE = 1e-6  # sums of a few float32 probabilities
SMALLEST_STEP = 2.0**-20  # far above the rounding of uniform * q, far below any probability used


def acceptance(p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
    """Probability of acceptance [n], found by bisection on the uniform number."""
    low, high = torch.zeros(len(drafts)), torch.ones(len(drafts))
    for _ in range(30):
        middle = (low + high) / 2
        accepted = is_accepted(p, q, drafts, middle)
        low, high = torch.where(accepted, middle, low), torch.where(accepted, high, middle)
    return high


def output_distribution(p: Tensor, q: Tensor) -> Tensor:
    """Distribution of the emitted token [V] when the draft is drawn from q, all drafts summed."""
    drafts = torch.arange(len(q))
    ps, qs = p.expand(len(q), -1), q.expand(len(q), -1)
    accepted = acceptance(ps, qs, drafts)
    rest = remainder(ps, qs)
    rest = rest / rest.sum(-1, keepdim=True)
    return (q * accepted) @ torch.eye(len(q)) + (q * (1 - accepted)) @ rest


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two distributions over the same 2 .. 5 tokens, with zeros, equal entries and equal pairs."""
    size = draw(st.integers(2, 5))
    weights = st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any)
    p = torch.tensor(draw(weights), dtype=torch.float32)
    q = p if draw(st.booleans()) else torch.tensor(draw(weights), dtype=torch.float32)
    return p / p.sum(), q / q.sum()


@given(distributions())
def test_what_comes_out_is_p_whatever_q(pair: tuple[Tensor, Tensor]) -> None:
    p, q = pair
    assert torch.allclose(output_distribution(p, q), p, atol=TOLERANCE, rtol=0)


@given(distributions())
def test_acceptance_is_the_overlap(pair: tuple[Tensor, Tensor]) -> None:
    """Sum of min(p, q): no rule that keeps p accepts more often."""
    p, q = pair
    size = len(p)
    accepted = acceptance(p.expand(size, -1), q.expand(size, -1), torch.arange(size))
    assert float(q @ accepted) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-5)


@given(distributions(), st.data())
def test_a_one_hot_q_accepts_with_the_probability_of_its_token(
    pair: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    p, _ = pair
    token = data.draw(st.integers(0, len(p) - 1))
    q = torch.nn.functional.one_hot(torch.tensor([token]), len(p)).float()
    assert float(acceptance(p[None], q, torch.tensor([token]))) == pytest.approx(
        float(p[token]), abs=SMALLEST_STEP
    )
    assert torch.allclose(output_distribution(p, q[0]), p, atol=TOLERANCE, rtol=0)


def test_two_tokens_of_a_block_have_the_exact_joint_distribution() -> None:
    """All drafts and all outcomes of a block of two, weighted: p0(x) p1(y | x)."""
    size = 3
    tables = torch.rand(4, size, size, generator=torch.Generator().manual_seed(0)) + 0.05
    p, q, p_after, q_after = tables / tables.sum(-1, keepdim=True)
    p0, q0 = p[0], q[0]
    joint = torch.zeros(size, size)
    for d0, d1 in product(range(size), repeat=2):
        weight = q0[d0] * q_after[d0, d1]
        first = acceptance(p0[None], q0[None], torch.tensor([d0]))[0]
        second = acceptance(p_after[d0][None], q_after[d0][None], torch.tensor([d1]))[0]
        rest = remainder(p0[None], q0[None])[0]
        rest_after = remainder(p_after[d0][None], q_after[d0][None])[0]
        # rejected at once: the first token is the correction, the second one is plain
        joint += weight * (1 - first) * (rest / rest.sum())[:, None] * p_after
        joint[d0, d1] += weight * first * second
        joint[d0] += weight * first * (1 - second) * rest_after / rest_after.sum()
    assert torch.allclose(joint, p0[:, None] * p_after, atol=TOLERANCE, rtol=0)


def test_the_same_check_fails_for_published_mistakes() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.2, 0.6])
    accepted = torch.minimum(p / q, torch.ones(3))

    def comes_out(accepted: Tensor, rest: Tensor) -> Tensor:
        return q * accepted + float(q @ (1 - accepted)) * rest / rest.sum()

    rest = (p - q).clamp(min=0)
    assert torch.allclose(comes_out(accepted, rest), p, atol=TOLERANCE)
    assert not torch.allclose(comes_out(accepted, p), p, atol=1e-2)  # redrawn from p itself
    threshold = (p > 0.25).float()  # accepted when probable enough
    assert not torch.allclose(comes_out(threshold, rest), p, atol=1e-2)


def test_edges() -> None:
    """No draft, an id beyond the vocabulary, p == q, and a token that p excludes."""
    p = torch.tensor([[0.5, 0.5, 0.0]]).expand(5, -1)
    q = torch.tensor(
        [[0.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0, 0, 1]]
    )
    drafts = torch.tensor([-1, 7, 1, 2, 2])
    zero, almost = torch.zeros(5), torch.full((5,), 1 - 2.0**-24)
    assert is_accepted(p, q, drafts, zero).tolist() == [False, False, True, False, False]
    assert is_accepted(p, q, drafts, almost).tolist() == [False, False, True, False, False]
    assert torch.equal(remainder(p, q)[0], p[0])
    assert torch.equal(remainder(p, q)[2], p[2])  # nothing is left: p stands in
    times = torch.ones(5, 3)
    assert accept_or_replace(p, q, drafts, zero, times).tolist() == [0, 0, 1, 0, 0]
