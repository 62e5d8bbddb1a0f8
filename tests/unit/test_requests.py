"""How options are written down, for which row, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.batch import Request
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.requests import make_requests, settings_per_row
from draftproof.sampling import Coupling, Settings

VOCAB = 50


def settings(count: int = 2, **options: Any) -> list[Settings]:
    return settings_per_row(options, count, eos=(9,))


def requests(count: int = 2, **options: Any) -> list[Request]:
    return make_requests([[1, 2, 3]] * count, options, (9,), VOCAB)


def test_defaults_are_greedy_and_plain() -> None:
    first, second = settings()
    assert first == second == Settings(eos_token_id=(9,), coupling=Coupling.REJECTION)
    assert first.plain
    assert not first.sampled
    assert not first.recorded


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_new_tokens", 5, [5, 5]),
        ("max_new_tokens", [5, 6], [5, 6]),
        ("eos_token_id", None, [(), ()]),
        ("eos_token_id", 3, [(3,), (3,)]),
        ("eos_token_id", [3, 4], [(3, 4), (3, 4)]),
        ("eos_token_id", [[3, 4], None], [(3, 4), ()]),
        ("stop_strings", "a", [("a",), ("a",)]),
        ("stop_strings", ["a", "b"], [("a", "b"), ("a", "b")]),
        ("stop_strings", [["a"], None], [("a",), ()]),
        ("bad_words_ids", [[1], [2, 3]], [((1,), (2, 3))] * 2),
        ("bad_words_ids", [[[1]], None], [((1,),), ()]),
        ("sequence_bias", {(1, 2): 3.0}, [(((1, 2), 3.0),)] * 2),
        ("sequence_bias", [[[1, 2], 3.0]], [(((1, 2), 3.0),)] * 2),
        ("sequence_bias", [None, {(4,): 1}], [(), (((4,), 1.0),)]),
        ("top_k", [None, 3], [0, 3]),
        ("seed", [1, 2], [1, 2]),
        ("coupling", ["rejection", "seeded"], ["rejection", "seeded"]),
        ("logprobs", [None, 2], [None, 2]),
        ("output_scores", True, [True, True]),
    ],
)
def test_one_value_or_one_per_row(name: str, value: Any, expected: list[Any]) -> None:
    assert [getattr(setting, name) for setting in settings(**{name: value})] == expected


def test_openais_bias_is_a_bias_of_one_id() -> None:
    both = settings(logit_bias={"4": -100, 5: 1}, sequence_bias={(1, 2): 3.0})
    assert both[0].sequence_bias == (((4,), -100.0), ((5,), 1.0), ((1, 2), 3.0))
    assert settings(logit_bias=[{4: 1.0}, {}])[1].sequence_bias == ()


@pytest.mark.parametrize(
    ("options", "sampled"),
    [
        ({}, False),
        ({"seed": 3}, False),
        ({"temperature": 0.7}, True),
        ({"temperature": 0}, False),
        ({"top_p": 0.9}, True),
        ({"top_k": 5, "temperature": 0.0}, False),
        ({"do_sample": True}, True),
        ({"do_sample": True, "temperature": 0}, False),
        ({"do_sample": False, "temperature": 0.7}, False),
        ({"do_sample": None, "min_p": 0.1}, True),
    ],
)
def test_what_makes_a_row_sampled(options: dict[str, Any], sampled: bool) -> None:
    assert settings(1, **options)[0].sampled is sampled


def test_coupling_follows_the_seed_unless_given() -> None:
    assert settings(1, temperature=1.0)[0].coupling is Coupling.REJECTION
    assert settings(1, temperature=1.0, seed=1)[0].coupling is Coupling.SEEDED
    given = settings(1, temperature=1.0, seed=1, coupling="rejection")[0]
    assert given.coupling is Coupling.REJECTION
    assert given.drawn_from_draft


def test_ignore_eos() -> None:
    assert [s.eos_token_id for s in settings(ignore_eos=[True, False])] == [(), (9,)]


def test_sequences_are_requests_of_their_own() -> None:
    made = requests(do_sample=True, num_return_sequences=[1, 2], seed=1)
    places = [(r.index, r.origin, r.sequence) for r in made]
    assert places == [(0, 0, 0), (1, 1, 0), (2, 1, 1)]
    assert made[0].stream == made[1].stream != made[2].stream  # one prompt, one seed


def test_one_processor_for_all_or_lists_per_row() -> None:
    def one(ids: Any, scores: Any) -> Any:
        return scores

    def two(ids: Any, scores: Any) -> Any:
        return scores

    assert settings(logits_processor=one)[1].logits_processor == (one,)
    assert settings(logits_processor=[one, two])[0].logits_processor == (one, two)
    per_row = settings(logits_processor=[[one], None])
    assert [s.logits_processor for s in per_row] == [(one,), ()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be 0 or more, got -1"),
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "temperature must be .* got 'hot'"),
        ({"top_p": 1.2}, "top_p must be between 0 and 1"),
        ({"min_p": -1}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty must be more than 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop_strings": [""]}, "empty string"),
        ({"bad_words_ids": [[]]}, "bad_words_ids holds an empty list"),
        ({"bad_words_ids": [[50]]}, "bad_words_ids: .50. holds an id outside the vocabulary of 50"),
        ({"logit_bias": {60: 1.0}}, "logit_bias or sequence_bias: .60."),
        ({"temperature": [1.0, 1.0, 1.0]}, "temperature has 3 values for 2 prompts"),
        ({"num_return_sequences": 0, "do_sample": True}, "num_return_sequences must be 1"),
        ({"num_return_sequences": 2}, "prompt 0, which is decoded greedily"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        requests(**options)


def test_an_unknown_coupling_is_named() -> None:
    with pytest.raises(UnsupportedArgumentError, match="coupling='magic'; choose one of seeded"):
        requests(coupling="magic")
