"""Sampled speculative decoding draws from the target's own distribution: 200,000 draws say so.

Drafter and verifier are the real ones; the models are tables, so that the joint distribution of the
first tokens is known. All seeds are fixed: a p-value is the same in every run. The level is
divided by the number of tests (Bonferroni). The negative controls are faults that others made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.drafters.base import Drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.processing import Draw, pipeline
from draftproof.sampling import Coupling
from draftproof.types import Drafts
from draftproof.verifiers import SamplingVerifier

from .table_models import (
    VOCAB,
    TableExecutor,
    draw_tokens,
    exact_joint,
    fresh_rows,
    p_value,
    random_table,
)

TARGET, DRAFT = random_table(1), random_table(2)
QUICK, MANY = 5_000, 200_000
CHUNK = 8_000

FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "all": {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
}
COUPLINGS = ("seeded", "rejection")
# drafts of a model under every filter; without random drafts once per coupling
CASES = [(filters, coupling, "model") for filters in FILTERS for coupling in COUPLINGS] + [
    ("all", coupling, kind) for coupling in COUPLINGS for kind in ("one-hot", "none")
]
LEVEL = 0.01 / len(CASES)
CONTROL_LEVEL = 1e-6


@dataclass(frozen=True, kw_only=True)
class OneHotDrafter:
    """Always proposes 1, 3, 1, 3, ...: drafts that are no random draws, as of an n-gram lookup."""

    name: str = "one-hot"

    def limit(self, row: Row) -> int | None:
        return None

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        ids = torch.tensor([[1, 3][:count] for count in wanted])
        return Drafts(ids=ids, counts=list(wanted))

    def commit(self, row: Row) -> None:
        return

    def release(self, row: Row) -> None:
        return


def model_drafter(rows: int) -> ModelDrafter:
    executor = TableExecutor(DRAFT, rows)
    return ModelDrafter(executor=executor, max_num_batched_tokens=4 * rows, vocab_size=VOCAB)


def make_drafter(kind: str, rows: int) -> Drafter:
    if kind == "model":
        return model_drafter(rows)
    return OneHotDrafter() if kind == "one-hot" else NoDrafter()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many rows, tokens of each, and drafts per round."""

    draws: int = QUICK
    length: int = 3
    k: int = 2


def drawn(
    plan: Plan, filters: str, coupling: str, kind: str, wrap: Any = lambda drafter: drafter
) -> np.ndarray:
    """The first tokens of rows that differ in their seed, [draws, length]."""
    settings = {"do_sample": True, "coupling": Coupling(coupling), **FILTERS[filters]}
    parts = []
    for first in range(0, plan.draws, CHUNK):
        count = min(CHUNK, plan.draws - first)
        rows = fresh_rows(count, first, settings)
        drafter = wrap(make_drafter(kind, count))
        wanted = 0 if kind == "none" else plan.k
        parts.append(draw_tokens(rows, plan.length, wanted, TARGET, drafter, SamplingVerifier()))
    return np.concatenate(parts)


def check(plan: Plan, filters: str, coupling: str, kind: str) -> float:
    tokens = drawn(plan, filters, coupling, kind)
    return p_value(tokens, exact_joint(TARGET, FILTERS[filters], plan.length))


@pytest.mark.parametrize("case", [case for case in CASES if case[0] == "all"], ids="-".join)
def test_joint_distribution(case: tuple[str, str, str]) -> None:
    assert check(Plan(), *case) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_joint_distribution_of_many_draws(case: tuple[str, str, str]) -> None:
    # the second token is the bonus where the one draft is accepted
    value = check(Plan(draws=MANY, length=2, k=1), *case)
    print(f"p = {value:.4f}  {', '.join(case)}")
    assert value > LEVEL


def test_filters_are_told_apart() -> None:
    """The test would notice a filter that is not applied."""
    tokens = drawn(Plan(), "temperature", "rejection", "model")
    assert p_value(tokens, exact_joint(TARGET, FILTERS["plain"], 3)) < CONTROL_LEVEL


# -- faults that must be found ---------------------------------------------------------------------


@dataclass(kw_only=True)
class WrongQ:
    """Reports another distribution than the one the drafts were drawn from."""

    inner: ModelDrafter
    q: Tensor
    name: str = field(default="wrong", init=False)

    def limit(self, row: Row) -> int | None:
        return self.inner.limit(row)

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        drafts = self.inner.propose(rows, wanted)
        assert drafts.probabilities is not None
        return replace(drafts, probabilities=self.q.expand_as(drafts.probabilities))

    def commit(self, row: Row) -> None:
        self.inner.commit(row)

    def release(self, row: Row) -> None:
        self.inner.release(row)


def control(
    draws: int = QUICK, filters: str = "plain", wrap: Any = lambda drafter: drafter
) -> float:
    tokens = drawn(Plan(draws=draws), filters, "rejection", "model", wrap)
    return p_value(tokens, exact_joint(TARGET, FILTERS[filters], 3))


def test_fault_q_is_not_what_was_drawn_from() -> None:
    uniform = torch.full((VOCAB,), 1 / VOCAB)
    assert control(wrap=lambda drafter: WrongQ(inner=drafter, q=uniform)) < CONTROL_LEVEL


def test_fault_q_before_processing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts drawn with top_k = 2, q taken from the unfiltered logits."""
    from draftproof.drafters.model import _Sheet

    true_remember = _Sheet.remember

    def remember(sheet: _Sheet, step: int, scores: Tensor) -> None:
        last = [
            ([*row.tokens, *ids])[len(row.tokens) + step - 1]
            for row, ids in zip(sheet.rows, sheet.ids.tolist(), strict=True)
        ]
        true_remember(sheet, step, DRAFT[[last[i] for i in sheet.active]])

    monkeypatch.setattr(_Sheet, "remember", remember)
    assert control(filters="top_k") < CONTROL_LEVEL


def test_fault_accepted_when_probable_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def threshold(p: Tensor, q: Tensor, drafts: Tensor, uniform: Tensor) -> Tensor:
        return (drafts >= 0) & (p.gather(1, drafts.clamp(min=0)[:, None])[:, 0] > 0.2)

    monkeypatch.setattr("draftproof.verifiers.rejection.is_accepted", threshold)
    assert control() < CONTROL_LEVEL


def test_fault_correction_drawn_from_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.verifiers.rejection.remainder", lambda p, q: p.clone())
    assert control() < CONTROL_LEVEL


@pytest.mark.slow
def test_fault_draft_and_correction_share_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under rejection sampling the draft's numbers must say nothing about the correction's."""
    true_key = pipeline.position_key

    def shared(stream: int, position: int, draw: Draw) -> int:
        return true_key(stream, position, Draw.CHOICE if draw is Draw.DRAFT else draw)

    # the bias is small, and largest where the draft knows nothing
    monkeypatch.setattr(pipeline, "position_key", shared)
    monkeypatch.setattr(f"{__name__}.DRAFT", random_table(2, spread=0.3))
    assert control(draws=MANY // 8) < CONTROL_LEVEL


def test_fault_numbers_that_know_the_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One set of numbers for all positions: tokens of a row are no longer independent."""
    true_key = pipeline.position_key
    monkeypatch.setattr(
        pipeline, "position_key", lambda stream, position, draw: true_key(stream, 0, draw)
    )
    assert control() < CONTROL_LEVEL
