"""The end of a row: eos, stop strings, length and the least length, wherever a block is cut."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from draftproof import FinishReason, Result
from draftproof.testing import (
    Oracle,
    ScriptedDrafter,
    assert_same_tokens,
    cut_at,
    prepared,
    stock_generate,
    tiny_model,
    tiny_tokenizer,
)

from .subjects import K, assert_all_drafters_agree, generated, oracle, pair

EOS = FinishReason.EOS
STOP = FinishReason.STOP
LENGTH = FinishReason.LENGTH


def emitted_by_stats(result: Result) -> int:
    """Tokens that the counters know of, and the one that ended the prefill."""
    stats = result.stats
    return 1 + stats.num_accepted_draft_tokens + stats.correction_tokens + stats.bonus_tokens


# -- eos ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(2 * K))
def test_eos_at_every_offset_of_a_block_and_another_one_in_each_row(first: int) -> None:
    subject = oracle().pick([0, 1, 2, 3])
    offsets = [(first + 3 * row) % (2 * K) for row in range(4)]
    eos = [[new[p]] for new, p in zip(subject.continuations, offsets, strict=True)]
    expected = subject.expected(20, eos)
    for draft in (subject.drafter(K), subject.drafter([4, 3, 2, 1]), "ngram", subject.model):
        subject_pair = pair(subject.model, draft)
        options: dict[str, Any] = {"max_new_tokens": 20, "eos_token_id": eos, "debug": True}
        results = subject_pair.generate(subject.prompts, **options)
        assert_same_tokens([result.token_ids for result in results], expected, f"offsets {offsets}")
        assert [result.finish_reason for result in results] == [EOS] * 4
        assert [emitted_by_stats(result) for result in results] == [len(ids) for ids in expected]
        streamed: list[list[int]] = [[], [], [], []]
        for event in subject_pair.stream(subject.prompts, **options):
            streamed[event.index] += event.token_ids
        assert streamed == expected


def test_nothing_of_a_row_is_cached_after_its_eos() -> None:
    subject = oracle().pick([0, 1])
    engine = prepared(
        pair(subject.model, subject.drafter(K)),
        subject.prompts,
        max_new_tokens=20,
        eos_token_id=[[subject.continuations[0][2]], []],
        debug=True,
    )
    engine.step()
    while 0 in engine.batch.rows:
        engine.step()
    assert engine.target.lengths[0] == 0
    assert engine.target.lengths[1] == len(engine.batch.rows[1].tokens) - 1


def test_one_eos_id_several_and_none() -> None:
    subject = oracle().pick([0, 1, 2])
    one, other = subject.continuations[0][5], subject.continuations[1][3]
    for given, ids in [(None, []), (one, [one]), ([one, other], [one, other]), ([], [])]:
        expected = subject.expected(16, [ids] * 3)
        assert_all_drafters_agree(
            subject, expected, str(given), max_new_tokens=16, eos_token_id=given
        )


def test_eos_is_the_models_own_unless_another_is_given() -> None:
    subject = oracle().pick([0, 1])
    model = tiny_model(seed=1)
    model.generation_config.eos_token_id = subject.continuations[0][4]
    eos = [[model.generation_config.eos_token_id]] * 2
    own = generated(model, "ngram", subject.prompts, max_new_tokens=16)
    assert_same_tokens(own, subject.expected(16, eos))
    none = generated(model, "ngram", subject.prompts, max_new_tokens=16, eos_token_id=None)
    assert_same_tokens(none, subject.expected(16))


def test_an_eos_in_the_prompt_is_a_token_like_any_other() -> None:
    eos = 17
    prompts = [[5, eos, 6], [eos], [eos] * 3 + oracle().prompts[1]]
    subject = Oracle.ask(tiny_model(seed=1), prompts, tokens=12)
    expected = subject.expected(12, [[eos]] * 3)
    assert_all_drafters_agree(subject, expected, max_new_tokens=12, eos_token_id=eos)


# -- length ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", range(K + 3))
def test_every_small_number_of_new_tokens(new: int) -> None:
    subject = oracle().pick([0, 1, 3])
    assert_all_drafters_agree(subject, subject.expected(new), str(new), max_new_tokens=new)


def test_a_row_ends_where_the_context_does() -> None:
    model = tiny_model(seed=1, max_position_embeddings=32)
    subject = Oracle.of(model, (20, 5, 32), tokens=12, seed=7)
    results = pair(model, "ngram").generate(subject.prompts, max_new_tokens=20, debug=True)
    # the last token of a row is not cached: 32 positions hold one token fewer than are known
    assert [len(result.token_ids) for result in results] == [13, 20, 1]
    assert {result.finish_reason for result in results} == {LENGTH}


# -- at least so many -----------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 1, 3, K + 1, 9])
def test_min_new_tokens_with_an_earlier_eos_is_what_generate_does(least: int) -> None:
    subject = oracle().pick([0, 1, 2])
    eos = sorted({new[p] for new in subject.continuations for p in (1, 4)})
    expected = [
        stock_generate(
            subject.model, prompt, 14, min_new_tokens=least, eos_token_id=eos, pad_token_id=0
        )
        for prompt in subject.prompts
    ]
    assert_all_drafters_agree(
        subject, expected, max_new_tokens=14, min_new_tokens=least, eos_token_id=eos
    )


# -- stop strings ---------------------------------------------------------------------------------


@functools.cache
def writer() -> Oracle:
    """A model that writes printable ASCII, a byte per token."""
    model = tiny_model(seed=3, vocab_size=259)
    with torch.no_grad():
        model.lm_head.weight[:32] = 0
        model.lm_head.weight[127:] = 0
    return Oracle.of(model, (3, 20, 9), tokens=24, seed=9)


TOKENIZER = tiny_tokenizer()


def text_of(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens))


def written(draft: Any, **options: Any) -> list[Result]:
    subject_pair = pair(writer().model, draft, tokenizer=TOKENIZER)
    return subject_pair.generate(writer().prompts, **{"debug": True, **options})


def stopped(tokens: list[int], stop: str) -> list[int]:
    """The shortest beginning whose text holds the stop string."""
    ends = (n for n in range(1, len(tokens) + 1) if stop in text_of(tokens[:n]))
    return tokens[: next(ends, len(tokens))]


@pytest.mark.parametrize("place", range(2 * K))
@pytest.mark.parametrize("width", [1, 2, 6])
def test_stop_strings_across_tokens_and_across_rounds(place: int, width: int) -> None:
    stops = [[text_of(new[place : place + width])] for new in writer().continuations]
    expected = [
        stopped(new[:20], stop) for new, (stop,) in zip(writer().continuations, stops, strict=True)
    ]
    drafters: list[ScriptedDrafter | None] = [
        None,
        writer().drafter(K),
        writer().drafter([1, 2, 3]),
    ]
    for draft in drafters:
        results = written(draft, max_new_tokens=20, stop_strings=stops)
        assert_same_tokens([result.token_ids for result in results], expected)
        assert [result.finish_reason for result in results] == [STOP] * 3
        assert [result.text for result in results] == [text_of(ids) for ids in expected]
        assert [emitted_by_stats(result) for result in results] == [len(ids) for ids in expected]


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    subject = writer()
    prompts = [subject.prompts[0] + subject.continuations[0][:4]]
    stop = text_of(subject.continuations[0][2:6])  # two characters of it lie in the prompt
    rest = Oracle.ask(subject.model, prompts, tokens=12)
    assert stop not in text_of(rest.continuations[0][:12])
    results = pair(subject.model, "ngram", tokenizer=TOKENIZER).generate(
        prompts, max_new_tokens=12, stop_strings=stop
    )
    assert_same_tokens([results[0].token_ids], rest.expected(12))


@pytest.mark.parametrize(
    ("eos_at", "stop_at", "length", "reason"),
    [
        (3, 5, 7, EOS),
        (5, 3, 7, STOP),
        (7, 5, 3, LENGTH),
        (4, 4, 9, EOS),
        (9, 4, 5, STOP),
        (4, 9, 5, EOS),
    ],
)
@pytest.mark.parametrize("drafted", [0, K])
def test_the_earliest_of_eos_stop_and_length_wins(
    eos_at: int, stop_at: int, length: int, reason: FinishReason, drafted: int
) -> None:
    row = distinct_beginning(10)
    new = row.continuations[0]
    results = pair(row.model, row.drafter(K), tokenizer=TOKENIZER).generate(
        row.prompts,
        max_new_tokens=length,
        eos_token_id=new[eos_at],
        stop_strings=text_of(new[stop_at : stop_at + 1]),
        num_speculative_tokens=drafted,
        debug=True,
    )
    assert results[0].finish_reason is reason
    end = {EOS: eos_at + 1, STOP: stop_at + 1, LENGTH: length}[reason]
    assert_same_tokens([results[0].token_ids], [new[:end]])


def distinct_beginning(count: int) -> Oracle:
    """A row whose first tokens are all different: else an end would come earlier."""
    different = (len(set(new[:count])) == count for new in writer().continuations)
    return writer().pick([list(different).index(True)])


def test_the_cut_keeps_the_eos_itself() -> None:
    assert cut_at([4, 5, 6, 5], [5]) == [4, 5]
    assert cut_at([4, 5], []) == [4, 5]
