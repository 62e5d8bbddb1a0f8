"""Vocabularies of different sizes, and counters that add up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof import Pair, SpecStats, VocabularyError
from draftproof.testing import (
    Oracle,
    Recorder,
    assert_same_tokens,
    tiny_model,
    tiny_tokenizer,
)

from .subjects import K, generated, near_copy, oracle, pair

# -- embeddings padded differently ----------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred() -> Oracle:
    model = tiny_model(seed=1, vocab_size=100)
    return Oracle.of(model, (3, 40, 9, 17), tokens=16, seed=4)


def draft_with(vocab_size: int, favourite: int | None = None) -> Any:
    """A draft of another embedding size; with a favourite it often proposes just that id."""
    draft = tiny_model(seed=2, vocab_size=vocab_size)
    if favourite is not None:
        with torch.no_grad():
            draft.lm_head.weight[favourite] *= 4
    return draft


@pytest.mark.parametrize(("vocab_size", "favourite"), [(96, None), (104, 103), (104, 100)])
def test_a_draft_with_more_or_fewer_embeddings(
    hundred: Oracle, vocab_size: int, favourite: int | None
) -> None:
    rounds, embedded = Recorder(), []
    watch = hundred.model.get_input_embeddings().register_forward_pre_hook(
        lambda module, inputs: embedded.append(int(inputs[0].max()))
    )
    draft = draft_with(vocab_size, favourite)
    found = generated(hundred.model, draft, hundred.prompts, max_new_tokens=16, observers=[rounds])
    watch.remove()
    assert_same_tokens(found, hundred.expected(16))
    drafts = {token for e in rounds.events for row in e.rows for token in row.drafts}
    assert favourite is None or favourite in drafts  # it really was proposed,
    assert max(embedded) < 100  # and never fed to the target


def test_ids_that_only_the_target_has_reach_a_smaller_draft(hundred: Oracle) -> None:
    prompts = [[97, 5, 98, 6], [99] * 20]
    subject = Oracle.ask(hundred.model, prompts, tokens=12)
    found = generated(hundred.model, draft_with(96), prompts, max_new_tokens=12)
    assert_same_tokens(found, subject.expected(12))


def test_scripted_ids_beyond_the_vocabulary_are_rejected(hundred: Oracle) -> None:
    drafter = hundred.drafter([0, 1, 2, 3], wrong=10**9)
    found = generated(hundred.model, drafter, hundred.prompts, max_new_tokens=16)
    assert_same_tokens(found, hundred.expected(16))


def test_different_tokenizers_are_refused() -> None:
    model, draft = tiny_model(vocab_size=300), tiny_model(vocab_size=300)
    tokenizer = tiny_tokenizer([("t", "h")])
    options: dict[str, Any] = {"tokenizer": tokenizer, "numerics": "fast"}
    Pair(model, draft, draft_tokenizer=tiny_tokenizer([("t", "h")]), **options)
    shifted = tiny_tokenizer([("a", "n"), ("t", "h")])  # every id from 256 on means something else
    with pytest.raises(VocabularyError, match=r"is 257 in the target and 258 in the draft"):
        Pair(model, draft, draft_tokenizer=shifted, **options)
    longer = tiny_tokenizer([(chr(a), chr(b)) for a in range(97, 105) for b in range(97, 105)])
    with pytest.raises(VocabularyError, match="in common"):
        Pair(model, draft, draft_tokenizer=longer, **options)


# -- counters -------------------------------------------------------------------------------------


def assert_adds_up(stats: SpecStats, generated: int, drafted: list[int]) -> None:
    """What holds for every row, whatever was drafted. drafted: per speculative round."""
    assert 0 <= stats.num_accepted_draft_tokens <= stats.num_draft_tokens == sum(drafted)
    closing = stats.correction_tokens + stats.bonus_tokens
    assert stats.num_accepted_draft_tokens + closing == max(0, generated - 1)
    kinds = (stats.full_accept_rounds, stats.partial_accept_rounds, stats.zero_accept_rounds)
    assert sum(kinds) == sum(stats.acceptance_histogram) == stats.num_spec_steps == len(drafted)
    weighted = sum(n * count for n, count in enumerate(stats.acceptance_histogram))
    assert weighted == stats.num_accepted_draft_tokens


@pytest.mark.parametrize("draft", [None, "ngram", "model", "target"])
def test_counters_add_up_for_every_row(draft: str | None) -> None:
    subject, rounds = oracle(), Recorder()
    models = {"model": near_copy(), "target": subject.model}
    results = pair(subject.model, models.get(draft or "", draft)).generate(
        subject.prompts, max_new_tokens=18, max_num_seqs=3, observers=[rounds]
    )
    for result in results:
        drafted = [len(row.drafts) for row in rounds.of(result.index) if row.drafts]
        assert_adds_up(result.stats, len(result.token_ids), drafted)


@pytest.mark.parametrize("offset", range(K + 1))
def test_rates_of_a_drafter_that_is_wrong_at_a_known_offset(offset: int) -> None:
    """`offset` of K accepted in every round: rate offset / K, mean offset + 1."""
    subject = oracle().pick([0])
    new = subject.continuations[0]
    # end the row with the last token of a full round, so that no shorter round follows
    ends = [1 + n * (offset + 1) for n in range(2, 24 // (offset + 1))]
    length = next(end for end in ends if new[end - 1] not in new[: end - 1])
    result = pair(subject.model, subject.drafter(offset)).generate(
        subject.prompts, max_new_tokens=24, eos_token_id=new[length - 1]
    )[0]
    assert result.token_ids == new[:length]
    assert result.stats.draft_acceptance_rate == offset / K
    assert result.stats.mean_acceptance_length == offset + 1
    assert result.stats.num_spec_steps == (length - 1) // (offset + 1)


def test_a_result_says_which_mode_ran() -> None:
    subject = oracle().pick([0])
    modes = [
        pair(subject.model, draft)
        .generate(subject.prompts, max_new_tokens=2, num_speculative_tokens=drafted)[0]
        .mode
        for draft, drafted in [("ngram", 4), (None, 4), ("ngram", 0)]
    ]
    assert modes == ["speculative", "plain: no draft", "plain: num_speculative_tokens is 0"]
