"""Property-based: any mixture of rows, lengths, limits, mistakes and ends equals the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftproof.engine.methods import EqSpec, ExSpec, Method, Rollback
from draftproof.testing import Oracle, ScriptedDrafter, assert_same_tokens

from .subjects import near_copy, oracle, pair

TOKENS = 16
POOL = (3, 40, 7, 1, 23, 12, 60, 5, 8, 9, 16, 17)


@dataclass(frozen=True)
class Draw:
    """One request: which prompt, how much of it, and how its drafts go."""

    prompt: int
    max_new_tokens: int
    limit: int
    wrong_at: int
    eos_at: int | None


DRAWS = st.builds(
    Draw,
    prompt=st.integers(0, len(POOL) - 1),
    max_new_tokens=st.integers(0, TOKENS),
    limit=st.integers(0, 6),
    wrong_at=st.integers(0, 6),
    eos_at=st.none() | st.integers(0, TOKENS - 1),
)
BATCHES = st.lists(DRAWS, min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {
        "num_speculative_tokens": st.integers(0, 6),
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(1, 80),
    }
)
METHODS = st.one_of(
    st.sampled_from([Method(), EqSpec(), Rollback()]),
    st.builds(
        ExSpec,
        window_size=st.integers(1, 6),
        sort_by_length=st.booleans(),
        policy=st.sampled_from(["first_full", "largest", "oldest"]),
        waiting_limit=st.integers(1, 3),
    ),
)
DRAFTERS = st.sampled_from(["scripted", "scripted", "junk", "ngram", "model"])


@pytest.fixture(scope="module", params=["llama", "mistral", "gpt2", "gemma2"])
def pool(request: pytest.FixtureRequest) -> tuple[str, Oracle]:
    return request.param, oracle(request.param, POOL, TOKENS)


def drafter(kind: str, name: str, subject: Oracle, draws: list[Draw]) -> Any:
    if kind == "ngram":
        return "ngram"
    if kind == "model":
        return near_copy(name)
    return ScriptedDrafter(
        continuations=subject.continuations,
        wrong_at=[draw.wrong_at for draw in draws],
        limits=[draw.limit for draw in draws],
        wrong=10**6 if kind == "junk" else None,
    )


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(draws=BATCHES, options=OPTIONS, kind=DRAFTERS, method=METHODS)
def test_any_mixture_of_rows_equals_the_reference(
    pool: tuple[str, Oracle],
    draws: list[Draw],
    options: dict[str, int],
    kind: str,
    method: Method,
) -> None:
    name, everything = pool
    subject = everything.pick([draw.prompt for draw in draws])
    eos = [
        [] if draw.eos_at is None else [new[draw.eos_at]]
        for draw, new in zip(draws, subject.continuations, strict=True)
    ]
    budgets = [draw.max_new_tokens for draw in draws]
    draft = drafter(kind, name, subject, draws)
    results = pair(subject.model, draft, method=method).generate(
        subject.prompts, max_new_tokens=budgets, eos_token_id=eos, debug=True, **options
    )
    assert_same_tokens([result.token_ids for result in results], subject.expected(budgets, eos))
