"""Positions and rows: what one row accepts, owes or asks for changes nothing in another."""

from __future__ import annotations

import itertools
import random

import pytest

from draftproof.testing import Oracle, Recorder, assert_same_tokens, random_prompts, tiny_model

from .subjects import K, generated, near_copy, oracle, pair

LEARNED_POSITIONS = ["gpt2", "opt"]
ROTARY = ["llama", "qwen3", "gemma2"]


@pytest.mark.parametrize("name", LEARNED_POSITIONS + ROTARY)
@pytest.mark.parametrize("offsets", [(4, 1), (0, 4), (3, 3)])
def test_each_row_advances_by_what_it_accepted(name: str, offsets: tuple[int, int]) -> None:
    subject, rounds = oracle(name, (3, 40), 16), Recorder()
    found = generated(
        subject.model,
        subject.drafter(offsets),
        subject.prompts,
        max_new_tokens=16,
        observers=[rounds],
    )
    assert_same_tokens(found, subject.expected(16))
    for index, offset in enumerate(offsets):
        speculative = [row for row in rounds.of(index) if row.drafts]
        assert all(row.accepted == min(offset, len(row.drafts)) for row in speculative)
        for now, later in itertools.pairwise(speculative):
            assert later.kv_len == now.kv_len + now.accepted + 1


@pytest.mark.parametrize("offsets", [(0, 2, 4), (4, 0, 1), (1, 1, 3)])
def test_a_round_emits_what_each_row_accepted_and_not_the_minimum(
    offsets: tuple[int, int, int],
) -> None:
    subject, rounds = oracle().pick([0, 1, 2]), Recorder()
    generated(
        subject.model,
        subject.drafter(offsets),
        subject.prompts,
        max_new_tokens=20,
        observers=[rounds],
    )
    full = [e for e in rounds.events if [len(row.drafts) for row in e.rows] == [K, K, K]]
    assert len(full) >= 2
    for event in full:
        assert [len(row.emitted) for row in event.rows] == [offset + 1 for offset in offsets]


@pytest.fixture(scope="module")
def mixed() -> Oracle:
    """Rows that repeat a phrase, where n-grams always match, beside rows of random ids."""
    phrases = [[7, 9, 11] * 5, [4, 4, 5] * 8, [60] * 9, [1, 2, 3, 4, 5] * 4]
    noise = random_prompts([3, 17, 30, 8], seed=21)
    prompts = [prompt for pair in zip(phrases, noise, strict=True) for prompt in pair]
    return Oracle.ask(tiny_model(seed=1), prompts, tokens=16)


def test_rows_where_ngrams_match_beside_rows_where_they_never_do(mixed: Oracle) -> None:
    rounds = Recorder()
    found = generated(
        mixed.model, "ngram", mixed.prompts, max_new_tokens=16, observers=[rounds], max_num_seqs=8
    )
    assert_same_tokens(found, mixed.expected(16))
    counts = {len(row.drafts) for event in rounds.events for row in event.rows}
    assert {0, K} <= counts  # the batch really was mixed


@pytest.mark.parametrize("draft", ["ngram", "model", "scripted"])
def test_permuted_batch_gives_permuted_outputs(mixed: Oracle, draft: str) -> None:
    order = random.Random(3).sample(range(8), 8)
    for subject in (mixed, mixed.pick(order)):
        drafter = {"model": near_copy(), "scripted": subject.drafter([0, 1, 2, 3, 4, 0, 2, 4])}
        found = generated(
            subject.model, drafter.get(draft, draft), subject.prompts, max_new_tokens=12
        )
        assert_same_tokens(found, subject.expected(12))


def test_a_neighbours_length_changes_nothing(mixed: Oracle) -> None:
    for length in (1, 15, 16, 17, 64):
        prompts = [*mixed.prompts[:3], *random_prompts([length], seed=length), *mixed.prompts[4:]]
        found = generated(mixed.model, "ngram", prompts, max_new_tokens=12)
        del found[3]
        assert_same_tokens(found, mixed.pick([0, 1, 2, 4, 5, 6, 7]).expected(12))


def test_rows_that_draft_nothing_beside_rows_that_draft_four() -> None:
    subject, rounds = oracle().pick([0, 1, 2, 3]), Recorder()
    drafter = subject.drafter(K, limits=[0, 4, 1, 3])
    found = generated(
        subject.model, drafter, subject.prompts, max_new_tokens=20, observers=[rounds]
    )
    assert_same_tokens(found, subject.expected(20))
    assert (0, 4, 1, 3) in {tuple(len(row.drafts) for row in e.rows) for e in rounds.events}


@pytest.mark.parametrize("budgets", [(10, 1, 0), (0, 0, 5), (1, 2, K + 1), (K, 0, K + 2)])
def test_budgets_that_differ_down_to_nothing(budgets: tuple[int, int, int]) -> None:
    subject = oracle().pick([0, 1, 2])
    expected = subject.expected(budgets)
    for draft in (None, "ngram", subject.drafter(K), near_copy()):
        found = generated(subject.model, draft, subject.prompts, max_new_tokens=list(budgets))
        assert_same_tokens(found, expected)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_results_come_in_request_order_whoever_finishes_first(rows: int) -> None:
    subject = oracle()
    budgets = [9, 2, 14, 1, 5, 20, 0, 7]
    subject_pair = pair(subject.model, near_copy())
    options = {"max_new_tokens": budgets, "max_num_seqs": rows, "debug": True}
    results = subject_pair.generate(subject.prompts, **options)
    assert [result.index for result in results] == list(range(8))
    assert [result.prompt_len for result in results] == [len(p) for p in subject.prompts]
    assert_same_tokens([result.token_ids for result in results], subject.expected(budgets))
    finished = [result.index for result in subject_pair.as_completed(subject.prompts, **options)]
    assert sorted(finished) == list(range(8))
    assert rows == 1 or finished != list(range(8))


@pytest.mark.parametrize("budget", [1, 5, 17, 64])
def test_prompts_read_in_chunks_of_any_size(budget: int) -> None:
    subject = oracle()
    for draft in ("ngram", near_copy()):
        found = generated(
            subject.model,
            draft,
            subject.prompts,
            max_new_tokens=8,
            max_num_seqs=3,
            max_num_batched_tokens=budget,
        )
        assert_same_tokens(found, subject.expected(8))
