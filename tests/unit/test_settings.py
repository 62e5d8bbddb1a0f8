"""Settings of a request: one value for all rows or one per row, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof import InputError, OutOfMemoryError, Pair, UnsupportedArgumentError
from draftproof.auto_k.auto import Auto
from draftproof.engine.schedule import Adaptive, Constant
from draftproof.executors import rows as rows_module
from draftproof.executors.memory import kv_bytes
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.sampling import Settings, as_ids, as_strings
from draftproof.testing import Oracle, assert_same_tokens, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def subject() -> Oracle:
    return Oracle.of(tiny_model(seed=1), (3, 9, 20), tokens=8)


@pytest.fixture(scope="module")
def pair(subject: Oracle) -> Pair:
    return Pair(subject.model, "ngram", numerics="fast")


def ids(pair: Pair, prompts: Any, **options: Any) -> list[list[int]]:
    return [result.token_ids for result in pair.generate(prompts, **options)]


# -- one or one per row ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple])
def test_max_new_tokens_for_all_or_for_each(pair: Pair, subject: Oracle, kind: type) -> None:
    assert_same_tokens(ids(pair, subject.prompts, max_new_tokens=3), subject.expected(3))
    found = ids(pair, subject.prompts, max_new_tokens=kind([1, 5, 0]))
    assert_same_tokens(found, subject.expected([1, 5, 0]))


def test_eos_for_all_one_per_row_or_several_per_row(pair: Pair, subject: Oracle) -> None:
    ends = [new[2] for new in subject.continuations]
    for given, each in [
        (ends, [ends] * 3),  # a flat list is one value for all rows
        ([[e] for e in ends], [[e] for e in ends]),
        ([ends[0], None, ends], [[ends[0]], [], ends]),
    ]:
        found = ids(pair, subject.prompts, max_new_tokens=8, eos_token_id=given)
        assert_same_tokens(found, subject.expected(8, each), str(given))


def test_min_new_tokens_for_each(pair: Pair, subject: Oracle) -> None:
    ends = [[new[0]] for new in subject.continuations]
    found = ids(
        pair, subject.prompts, max_new_tokens=4, eos_token_id=ends, min_new_tokens=[0, 4, 0]
    )
    assert [len(row) for row in found] == [1, 4, 1]


@pytest.mark.parametrize("name", ["max_new_tokens", "min_new_tokens"])
def test_too_few_values_are_refused(pair: Pair, subject: Oracle, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has 2 values for 3 prompts"):
        ids(pair, subject.prompts, **{name: [1, 2]})


def test_normal_forms() -> None:
    assert [as_ids(value) for value in (None, 3, [3, 4], (5,))] == [(), (3,), (3, 4), (5,)]
    assert [as_strings(value) for value in (None, "a", ["a", "b"])] == [(), ("a",), ("a", "b")]


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be 0 or more, got -1"),
        ({"min_new_tokens": -2}, "min_new_tokens must be 0 or more, got -2"),
        ({"stop_strings": ("a", "")}, "stop_strings holds an empty string"),
    ],
)
def test_impossible_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be 1 or more"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be 1 or more"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be 0 or more"),
        ({"stop_strings": "x"}, "stop_strings need a tokenizer"),
        ({"max_model_len": 12}, "prompt 2 has 20 tokens"),
    ],
)
def test_impossible_options(
    pair: Pair, subject: Oracle, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ids(pair, subject.prompts, **options)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("text", "wrap a single prompt in a list"),
        ([1, 2], "wrap a single prompt in a list"),
        ([{"role": "user", "content": "hi"}], "wrap a single prompt in a list"),
        ([[1], []], "prompt 1: the prompt has no tokens"),
        ([[1], [2] * 300], "prompt 1: the prompt has 300 tokens, the target's context 256"),
    ],
)
def test_prompts_that_cannot_be_decoded(pair: Pair, prompts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ids(pair, prompts)


def test_no_prompts_give_no_results(pair: Pair) -> None:
    assert pair.generate([]) == []


@pytest.mark.parametrize("name", ["method", "executor", "numerics"])
def test_unknown_names_are_refused_with_the_known_ones(subject: Oracle, name: str) -> None:
    with pytest.raises(UnsupportedArgumentError, match=f"{name}='best'; choose one of"):
        Pair(subject.model, **{name: "best"})
    with pytest.raises(UnsupportedArgumentError, match="draft='medusa'; choose one of ngram"):
        Pair(subject.model, "medusa", numerics="fast")


# -- how far rows draft where nobody says ---------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "most", "schedule"),
    [
        ("rows", {}, 8, Auto),
        ("rows", {"max_num_speculative_tokens": 5}, 5, Auto),
        ("rows", {"num_speculative_tokens_schedule": "adaptive"}, 4, Adaptive),
        ("rows", {"num_speculative_tokens": 3}, 3, Constant),
        ("eqspec", {}, 4, Constant),
    ],
)
def test_k_is_chosen_unless_a_number_is_meant(
    subject: Oracle, method: str, options: dict[str, Any], most: int, schedule: type
) -> None:
    pair = Pair(subject.model, tiny_model(seed=2), numerics="fast", method=method)
    plan = pair.prepare(subject.prompts, max_new_tokens=4, **options).plan
    assert plan.num_speculative_tokens == most
    assert isinstance(plan.schedule, schedule)


# -- text -----------------------------------------------------------------------------------------


def test_streamed_text_put_together_is_the_text() -> None:
    tokenizer = tiny_tokenizer()
    pair = Pair(tiny_model(seed=5, vocab_size=259), "ngram", tokenizer=tokenizer, numerics="fast")
    texts, results = ["", ""], []
    for event in pair.stream(["näh 😀", "the"], max_new_tokens=20):
        texts[event.index] += event.text or ""
        results += [event.result] if event.result else []
    assert [result.text for result in sorted(results, key=lambda r: r.index)] == texts


# -- memory ---------------------------------------------------------------------------------------


def test_a_cache_that_does_not_fit_is_refused_with_what_would(subject: Oracle) -> None:
    model = BoundModel(subject.model)
    one = kv_bytes(model, 1, 64)
    with pytest.raises(
        OutOfMemoryError, match="max_num_seqs=2 would fit, or a max_model_len of 40"
    ):
        RowsExecutor(model=model, rows=4, capacity=64, free=one * 5 // 2)
    RowsExecutor(model=model, rows=2, capacity=64, free=one * 5 // 2)


def test_sizes_are_known_before_anything_is_allocated(
    subject: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, allocated = BoundModel(subject.model), []
    monkeypatch.setattr(rows_module.torch, "zeros", lambda *a, **k: allocated.append(a))
    with pytest.raises(OutOfMemoryError):
        RowsExecutor(model=model, rows=4, capacity=64, free=10)
    assert allocated == []
