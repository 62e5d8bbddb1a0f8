"""The paper's methods write what the reference writes, for every model, prompt, K and grouping."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from draftproof import InputError, NumericsError, Pair, UnsupportedArgumentError
from draftproof.drafters.model import ModelDrafter
from draftproof.engine.grouping import Candidate, GroupedScheduler
from draftproof.executors.padded import PaddedExecutor
from draftproof.testing import (
    ARCHITECTURES,
    assert_cache_is_fresh,
    assert_same_tokens,
    prepared,
    tiny_model,
)

from .grid import DRAFTERS, Configuration, Subject, full_grid
from .subjects import generated, near_copy, oracle, pair

METHODS = ("eqspec", "exspec", "rollback")
SUPPORTED = [name for name, row in ARCHITECTURES.items() if row.supported]
EVERY_OFFSET = (0, 1, 2, 3, 4, 1, 3, 0)  # accepted drafts: rows part in every round


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_architecture(name: str) -> None:
    """EqSpec moves rows in every round; ExSpec groups them; a draft model lags by one or two."""
    subject = Subject.of(name)
    for drafter, method in (("oracle", "eqspec"), ("draft model", "exspec")):
        configuration = Configuration(drafter, 3, 4, 512, method)
        assert_same_tokens(*configuration.run(subject), f"{name}, {configuration}")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_the_full_grid(name: str, method: str) -> None:
    subject = Subject.of(name)
    for configuration in full_grid(method):
        assert_same_tokens(*configuration.run(subject), f"{name}, {configuration}")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_in_small_prompt_chunks(drafter: str, method: str) -> None:
    """A chunk leaves a row between two lengths; new rows join while others decode."""
    subject = Subject.of("gemma2")
    for rows, k in ((3, 1), (2, 4)):
        configuration = Configuration(drafter, rows, k, 8, method)
        assert_same_tokens(*configuration.run(subject), str(configuration))


@pytest.mark.parametrize("method", METHODS)
def test_the_target_as_its_own_draft_is_always_accepted(method: str) -> None:
    """Acceptance decays as soon as one entry of the draft's cache is wrong."""
    subject = oracle("qwen3").pick([1, 3, 5])
    engine = pair(subject.model, subject.model, method=method)
    results = engine.generate(subject.prompts, max_new_tokens=21, max_num_seqs=3, debug=True)
    assert [result.stats.draft_acceptance_rate for result in results] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_after_every_round_both_caches_are_what_a_fresh_prefill_gives(
    name: str, method: str
) -> None:
    subject = oracle(name).pick([0, 1, 2, 3])
    engine = prepared(
        pair(subject.model, near_copy(name), method=method),
        subject.prompts,
        max_new_tokens=10,
        max_num_seqs=3,
        debug=True,
    )
    assert isinstance(engine.drafter, ModelDrafter)
    while engine.scheduler.waiting or engine.batch.rows:
        engine.step()
        for executor in (engine.target, engine.drafter.executor):
            assert isinstance(executor, PaddedExecutor)
            for row in engine.batch:
                assert_cache_is_fresh(executor, row.slot, row.tokens)


@pytest.mark.parametrize("method", METHODS)
def test_eos_at_every_place_of_the_first_rounds(method: str) -> None:
    subject = oracle().pick(range(4))
    for place in range(8):
        eos = [[tokens[(place + row) % 8]] for row, tokens in enumerate(subject.continuations)]
        found = generated(
            subject.model,
            subject.drafter(3),
            subject.prompts,
            method=method,
            eos_token_id=eos,
            max_new_tokens=12,
        )
        assert_same_tokens(found, subject.expected(12, eos), f"{method}, eos at {place}")


@pytest.mark.parametrize("method", METHODS)
def test_budgets_and_contexts_differ_from_row_to_row(method: str) -> None:
    subject, budgets = oracle(), [1, 14, 2, 0, 9, 5, 14, 3]
    draft = subject.drafter(EVERY_OFFSET)
    options = {"method": method, "max_num_seqs": 3}
    found = generated(subject.model, draft, subject.prompts, max_new_tokens=budgets, **options)
    assert_same_tokens(found, subject.expected(budgets), method)
    room = [46 - len(prompt) for prompt in subject.prompts]
    found = generated(
        subject.model, draft, subject.prompts, max_new_tokens=14, max_model_len=45, **options
    )
    assert_same_tokens(found, subject.expected([min(14, n) for n in room]), method)


# -- ExSpec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["first_full", "largest", "oldest"])
@pytest.mark.parametrize("sort", [False, True])
def test_windows_policies_and_order(policy: str, sort: bool) -> None:
    """A pool of one batch up to all rows; results in the order of the requests."""
    subject = oracle()
    for window in (1, 2, 3, 5, 8):
        options = {
            "window_size": window,
            "policy": policy,
            "sort_by_length": sort,
            "waiting_limit": 2,
        }
        draft = subject.drafter(EVERY_OFFSET)
        results = pair(subject.model, draft, method="exspec", method_options=options).generate(
            subject.prompts, max_new_tokens=12, max_num_seqs=2, debug=True
        )
        found = [result.token_ids for result in results]
        assert_same_tokens(found, subject.expected(12), f"{policy}, {window}")


class Shuffled:
    """A policy that takes any rows."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
        most = min(size, len(candidates))
        return self.draw.sample(list(candidates), self.draw.randint(1, most))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["scripted", "model", "ngram"])
def test_random_regrouping_keeps_what_belongs_together(seed: int, kind: str) -> None:
    """Ids, both caches and positions of a row stay one row's, whoever it runs with."""
    subject = oracle()
    drafts: dict[str, Any] = {
        "scripted": subject.drafter(EVERY_OFFSET),
        "model": near_copy(),
        "ngram": "ngram",
    }
    exspec = pair(subject.model, drafts[kind], method="exspec", method_options={"window_size": 6})
    options = {"max_new_tokens": 12, "max_num_seqs": 3, "debug": True}
    engine = prepared(exspec, subject.prompts, **options)
    assert isinstance(engine.scheduler, GroupedScheduler)
    engine.scheduler.policy = Shuffled(seed)
    rows = {commit.row.request.index: commit.row for commits in engine.run() for commit in commits}
    found = [rows[index].emitted for index in range(len(subject.prompts))]
    assert_same_tokens(found, subject.expected(12), f"{kind}, seed {seed}")


# -- what is refused -------------------------------------------------------------------------------


def test_unknown_methods_and_options_are_refused() -> None:
    target = tiny_model("llama")
    with pytest.raises(UnsupportedArgumentError, match="bsp.*rows, eqspec, exspec, rollback"):
        Pair(target, method="bsp")
    with pytest.raises(UnsupportedArgumentError, match="'eqspec' has no option 'window_size'"):
        Pair(target, method="eqspec", method_options={"window_size": 4})
    for name, value in (("window_size", 0), ("waiting_limit", 0), ("policy", "youngest")):
        with pytest.raises(InputError, match=name):
            Pair(target, method="exspec", method_options={name: value})


@pytest.mark.parametrize("method", METHODS)
def test_exact_numerics_are_refused_where_rows_move(method: str) -> None:
    target = tiny_model("llama")
    with pytest.raises(NumericsError, match="needs method='rows'"):
        Pair(target, numerics="exact", method=method)
    assert Pair(target, numerics="auto", method=method).describe()["numerics"] == "fast"
