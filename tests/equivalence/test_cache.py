"""The KV cache: what is in it, what is never read from it, and how far the draft lags."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftproof.drafters.model import ModelDrafter
from draftproof.engine.engine import Engine
from draftproof.executors.layout import split
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import FAST
from draftproof.testing import (
    WINDOW,
    Recorder,
    assert_cache_is_fresh,
    assert_same_tokens,
    prepared,
    tiny_model,
)
from draftproof.types import RaggedTokens

from .subjects import K, generated, near_copy, oracle, pair

MODELS = ["llama", "gpt2", "mistral", "gemma2", "qwen3_moe"]


def assert_fresh(engine: Engine) -> None:
    """Both caches hold, for every live row, what a plain forward over its tokens would have."""
    assert isinstance(engine.target, RowsExecutor)
    for row in engine.batch:
        assert_cache_is_fresh(engine.target, row.slot, row.tokens)
        if isinstance(engine.drafter, ModelDrafter):
            executor = engine.drafter.executor
            assert isinstance(executor, RowsExecutor)
            assert_cache_is_fresh(executor, row.slot, row.tokens)


@pytest.mark.parametrize("name", MODELS)
def test_after_every_round_both_caches_are_what_a_fresh_prefill_gives(name: str) -> None:
    subject = oracle(name).pick([0, 1, 2, 3])
    engine = prepared(
        pair(subject.model, near_copy(name)),
        subject.prompts,
        max_new_tokens=10,
        max_num_seqs=3,
        max_num_batched_tokens=24,
        debug=True,
    )
    rounds = 0
    while engine.scheduler.waiting or engine.batch.rows:
        engine.step()
        assert_fresh(engine)
        rounds += 1
    assert rounds > 5


def test_the_freshness_check_notices_a_single_stale_entry() -> None:
    subject = oracle()
    engine = prepared(pair(subject.model), subject.prompts[:3], max_new_tokens=10)
    for _ in range(3):
        engine.step()
    assert_fresh(engine)
    assert isinstance(engine.target, RowsExecutor)
    engine.target.cache.values[1][1, 0, 17] *= 1.001
    with pytest.raises(AssertionError, match="row 1, layer 1: values of slot 17"):
        assert_fresh(engine)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_draft_lags_by_one_token_after_a_partial_acceptance_and_by_two_after_a_full_one(
    name: str,
) -> None:
    subject, rounds = oracle(name).pick([0, 1, 2]), Recorder()
    engine = prepared(
        pair(subject.model, near_copy(name)), subject.prompts, max_new_tokens=24, observers=[rounds]
    )
    assert isinstance(engine.drafter, ModelDrafter)
    seen = set()
    while engine.scheduler.waiting or engine.batch.rows:
        engine.step()
        last = {row.index: row for row in rounds.events[-1].rows if row.drafts}
        for row in engine.batch:
            done = last.get(row.request.index)
            if done is not None:
                full = done.accepted == len(done.drafts)
                lag = len(row.tokens) - engine.drafter.executor.lengths[row.slot]
                assert lag == (2 if full else 1)
                seen.add(lag)
    assert seen == {1, 2}


@pytest.mark.parametrize("name", MODELS)
def test_a_draft_that_is_the_target_is_accepted_in_full_for_twenty_rounds(name: str) -> None:
    """The output stays right when the draft's cache is off by one: only acceptance decays."""
    subject, rounds = oracle(name).pick([0, 1, 2]), Recorder()
    new = 20 * (K + 1) + 1
    generated(subject.model, subject.model, subject.prompts, max_new_tokens=new, observers=[rounds])
    for index in range(3):
        speculative = [row for row in rounds.of(index) if row.drafts]
        assert [row.accepted for row in speculative] == [K] * 20


@pytest.mark.parametrize("draft", [None, "ngram", "model", "scripted"])
def test_junk_in_every_stale_slot_changes_nothing(draft: str | None) -> None:
    subject = oracle()
    drafter = {"model": near_copy(), "scripted": subject.drafter([0, 1, 2, 3, 4, 1, 2, 3])}
    outputs = [
        generated(
            subject.model,
            drafter.get(draft or "", draft),
            subject.prompts,
            max_new_tokens=16,
            max_num_seqs=3,
            debug=poisoned,
        )
        for poisoned in (False, True)
    ]
    assert_same_tokens(*outputs)


def logits_of_three_rounds(model: BoundModel, *, poisoned: bool) -> list[Tensor]:
    """Ragged rounds with a rollback in each; NaN wherever the layout promises never to read."""
    executor = RowsExecutor(model=model, rows=5, capacity=64, shapes=FAST)
    generator = torch.Generator().manual_seed(2)
    outputs = []
    for rows, counts in [([0, 1, 3], [5, 30, 1]), ([0, 1, 3], [5, 2, 3]), ([1, 3, 4], [1, 20, 4])]:
        tokens = RaggedTokens(
            ids=torch.randint(0, 100, (sum(counts),), generator=generator),
            rows=rows,
            starts=[executor.lengths[row] for row in rows],
            counts=counts,
            keep=counts,
        )
        if poisoned:
            poison_unread(executor, tokens)
        outputs.append(executor.forward(tokens))
        for row in rows:
            executor.truncate(row, executor.lengths[row] - executor.lengths[row] // 3)
        executor.poison()  # finite again
    return outputs


def poison_unread(executor: RowsExecutor, tokens: RaggedTokens) -> None:
    views = [0] * executor.rows
    for block in split(tokens, executor.shapes):
        views[block.low : block.high] = [block.view] * (block.high - block.low)
    for tensor in (*executor.cache.keys, *executor.cache.values):
        for row, view in enumerate(views):
            tensor[row, :, max(view, executor.lengths[row]) :] = torch.nan


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2"])
def test_nan_beyond_the_view_and_in_other_rows_changes_no_bit(name: str) -> None:
    model = BoundModel(tiny_model(name, seed=1))
    clean = logits_of_three_rounds(model, poisoned=False)
    for ours, theirs in zip(logits_of_three_rounds(model, poisoned=True), clean, strict=True):
        assert torch.equal(ours, theirs)


def test_zeroing_a_stale_key_is_not_hiding_it() -> None:
    """Why slots are masked: a zero key still takes the weight exp(0) of the softmax."""
    query, keys = torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)
    values = torch.tensor([[[[2.0] * 4, [0.0] * 4]]])
    seen = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    assert torch.equal(seen, torch.ones(1, 1, 1, 4))  # half of the value that should be alone


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["mistral", "gemma3_text", "starcoder2"])
def test_sliding_windows_around_their_edge(name: str, implementation: str) -> None:
    subject = oracle(name, (6, WINDOW - 1, WINDOW, WINDOW + 1, 1, 2 * WINDOW), 20)
    subject.model.set_attn_implementation(implementation)
    for draft in ("ngram", subject.drafter([4, 3, 2, 1, 0, 4]), near_copy(name)):
        found = generated(subject.model, draft, subject.prompts, max_new_tokens=20)
        assert_same_tokens(found, subject.expected(20))
    assert subject.model.config._attn_implementation == implementation
