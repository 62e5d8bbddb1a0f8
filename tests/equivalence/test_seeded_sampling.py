"""A seeded row is the plain row of its seed, token for token, whatever happens around it.

Expected rows come from the slow reference: one fresh forward per token, transformers' own
processors, and a race written out here. Everything runs in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof import Pair
from draftproof.processing.noise import Draw, exponential, position_key, stream_key
from draftproof.reference import reference
from draftproof.testing import (
    ScriptedDrafter,
    assert_same_tokens,
    noisy_copy,
    random_prompts,
    tiny_model,
)

LENGTHS = (3, 9, 17, 5, 24, 2, 12, 8)
PROMPTS = random_prompts(LENGTHS)
NEW = 12
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return noisy_copy(target)


def race_by_hand(seed: int, prompt: Sequence[int], processors: list[Any], sequence: int = 0) -> Any:
    """`choose` of the reference: probability over waiting time, the largest wins."""
    stream = stream_key(seed, prompt, sequence)

    def choose(logits: Tensor, tokens: list[int]) -> int:
        ids = torch.tensor([tokens])
        scores = LogitsProcessorList(processors)(ids, logits[None].float())[0]
        key = position_key(stream, len(tokens) - len(prompt), Draw.CHOICE)
        times = exponential([key], len(logits), CPU)[0]
        return int((scores.softmax(-1) / times).argmax())

    return choose


# settings of `generate`, and transformers' list for them
SAMPLING: dict[str, tuple[dict[str, Any], Callable[[], list[Any]]]] = {
    "temperature 0.7": ({"temperature": 0.7}, lambda: [TemperatureLogitsWarper(0.7)]),
    "temperature 1": ({"temperature": 1.0}, list),
    "filters": (
        {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
        lambda: [
            TemperatureLogitsWarper(1.2),
            TopKLogitsWarper(30),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.02),
        ],
    ),
    "penalties": (
        {"do_sample": True, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
        lambda: [RepetitionPenaltyLogitsProcessor(1.4), NoRepeatNGramLogitsProcessor(2)],
    ),
}


def tokens_of(pair: Pair, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> list[Any]:
    defaults = {"max_new_tokens": NEW}
    return [result.token_ids for result in pair.generate(prompts, **(defaults | options))]


def expected_rows(target: Any, name: str, seed: int = 3) -> list[list[int]]:
    processors = SAMPLING[name][1]
    return [
        reference(target, prompt, NEW, choose=race_by_hand(seed, prompt, processors()))
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize("name", SAMPLING)
def test_plain_and_speculative_rows_are_the_references(target: Any, draft: Any, name: str) -> None:
    settings = SAMPLING[name][0] | {"seed": 3}
    expected = expected_rows(target, name)
    assert_same_tokens(
        tokens_of(Pair(target), max_num_seqs=1, **settings), expected, "plain, one at a time"
    )
    for kind, count, rows in ((draft, 2, 1), (draft, 4, 8), ("ngram", 3, 3)):
        found = tokens_of(
            Pair(target, kind),
            num_speculative_tokens=count,
            max_num_seqs=rows,
            debug=rows > 1,
            **settings,
        )
        assert_same_tokens(found, expected, f"K {count}, B {rows}")


def test_another_seed_is_another_row(target: Any) -> None:
    """The comparison above can fail."""
    one = tokens_of(Pair(target), temperature=1.0, seed=3)
    two = tokens_of(Pair(target), temperature=1.0, seed=4)
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_drafts_are_accepted_and_rejected(target: Any, draft: Any) -> None:
    """Nothing would be shown by a draft that is always or never right."""
    results = Pair(target, draft).generate(PROMPTS, max_new_tokens=NEW, temperature=0.7, seed=3)
    drafted = sum(result.stats.num_draft_tokens for result in results)
    accepted = sum(result.stats.num_accepted_draft_tokens for result in results)
    assert 0.2 < accepted / drafted < 0.9
    assert sum(result.stats.full_accept_rounds for result in results) > 3


@pytest.mark.parametrize("wrong_at", [0, 2, 4])
def test_scripted_acceptance(target: Any, wrong_at: int) -> None:
    expected = expected_rows(target, "filters")
    drafter = ScriptedDrafter(continuations=expected, wrong_at=wrong_at)
    results = Pair(target, drafter).generate(
        PROMPTS, max_new_tokens=NEW, seed=3, **SAMPLING["filters"][0]
    )
    assert_same_tokens([result.token_ids for result in results], expected)
    assert all(
        max(index for index, count in enumerate(result.stats.acceptance_histogram) if count)
        == wrong_at
        for result in results
    )


def test_a_draft_that_is_the_target_is_always_accepted(target: Any) -> None:
    """Draft and target share numbers and processing exactly."""
    for settings, _ in SAMPLING.values():
        results = Pair(target, tiny_model()).generate(
            PROMPTS, max_new_tokens=NEW, seed=3, **settings
        )
        for result in results:
            assert result.stats.num_accepted_draft_tokens == result.stats.num_draft_tokens > 0


@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [2, 5, 2], [4]])
def test_order_company_and_admission_change_nothing(
    target: Any, draft: Any, order: list[int]
) -> None:
    settings = {"temperature": 0.9, "top_p": 0.95}
    pair = Pair(target, draft)
    seeds = [10 + index for index in range(len(PROMPTS))]
    expected = tokens_of(pair, seed=seeds, **settings)
    found = tokens_of(
        pair,
        [PROMPTS[index] for index in order],
        seed=[seeds[index] for index in order],
        max_num_seqs=2,
        max_num_batched_tokens=16,
        **settings,
    )
    assert_same_tokens(found, [expected[index] for index in order])


def test_neighbours_settings_change_nothing(target: Any, draft: Any) -> None:
    """Greedy, seeded, rejection-sampled and penalised rows in one batch, each as alone."""
    count = len(PROMPTS)
    columns: dict[str, list[Any]] = {
        "do_sample": [False, True, True, True, False, True, True, True],
        "temperature": [1.0, 0.7, 1.0, 0.0, 0.5, 1.3, 1.0, 0.8],
        "top_k": [0, 5, 0, 3, 2, 0, 40, 0],
        "top_p": [1.0, 1.0, 0.8, 0.5, 1.0, 0.9, 1.0, 1.0],
        "min_p": [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.05],
        "repetition_penalty": [1.0, 1.2, 1.0, 1.0, 1.5, 1.0, 1.0, 0.9],
        "frequency_penalty": [0.0, 0.0, 0.4, 0.0, 0.0, 0.0, 0.2, 0.0],
        "presence_penalty": [0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0],
        "no_repeat_ngram_size": [0, 0, 0, 2, 3, 0, 0, 1],
        "logit_bias": [{}, {4: 2.0}, {}, {}, {9: -5.0}, {}, {}, {}],
        "bad_words_ids": [None, [[5], [6, 7]], None, None, [[8]], None, None, None],
        "seed": list(range(count)),
        "coupling": ["seeded", "seeded", "rejection", "seeded"] * 2,
        "max_new_tokens": [12, 7, 12, 11, 12, 1, 12, 10],
        "min_new_tokens": [0, 0, 5, 0, 0, 0, 12, 0],
        "eos_token_id": [[1], [2, 3], [4], [], [5], [6], list(range(50)), []],
    }
    pair = Pair(target, draft)
    together = tokens_of(pair, **columns)
    alone = [
        tokens_of(pair, [PROMPTS[i]], **{name: [column[i]] for name, column in columns.items()})[0]
        for i in range(count)
    ]
    assert_same_tokens(together, alone)
    assert_same_tokens([together[0]], [reference(target, PROMPTS[0], NEW, eos_token_id=[1])])


@pytest.mark.parametrize("vocab_size", [96, 104])
@pytest.mark.parametrize("coupling", ["seeded", "rejection"])
def test_a_draft_with_another_padding_of_the_vocabulary(
    target: Any, vocab_size: int, coupling: str
) -> None:
    """Target 101 entries, draft 96 or 104: works, and stays the plain row under seeded coupling."""
    prompts = random_prompts(LENGTHS, vocab_size=90)
    pair = Pair(target, tiny_model(seed=1, vocab_size=vocab_size))
    settings = {"temperature": 2.0, "seed": 3, "coupling": coupling, "repetition_penalty": 1.1}
    found = tokens_of(pair, prompts, **settings)
    if coupling == "seeded":
        assert_same_tokens(found, tokens_of(Pair(target), prompts, **settings))
    assert {len(row) for row in found} == {NEW}
    assert max(max(row) for row in found) < 101


@pytest.mark.parametrize("coupling", ["seeded", "rejection"])
def test_temperature_0_is_greedy(target: Any, draft: Any, coupling: str) -> None:
    found = tokens_of(
        Pair(target, draft), do_sample=True, temperature=0, top_k=7, seed=1, coupling=coupling
    )
    assert_same_tokens(found, [reference(target, prompt, NEW) for prompt in PROMPTS])


def test_sequences_of_one_prompt_differ_and_are_found_again(target: Any, draft: Any) -> None:
    options = {"max_new_tokens": NEW, "temperature": 1.0, "seed": 5}
    results = Pair(target, draft).generate(PROMPTS[:2], num_return_sequences=[3, 1], **options)
    assert [(r.index, r.sequence) for r in results] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len({tuple(result.token_ids) for result in results}) == 4
    for sequence in range(3):
        by_hand = race_by_hand(5, PROMPTS[0], [], sequence)
        expected = reference(target, PROMPTS[0], NEW, choose=by_hand)
        assert results[sequence].token_ids == expected
    again = Pair(target).generate([PROMPTS[0]], num_return_sequences=2, **options)
    assert [r.token_ids for r in again] == [r.token_ids for r in results[:2]]


def test_without_a_seed_torch_decides(target: Any, draft: Any) -> None:
    pair = Pair(target, draft)
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(pair.generate(PROMPTS, max_new_tokens=NEW, temperature=1.0))
    texts = [[result.token_ids for result in results] for results in runs]
    assert texts[0] == texts[1] != texts[2]
    # the seed that was drawn is told, and gives the row again
    drawn = [result.seed for result in runs[0]]
    assert tokens_of(pair, temperature=1.0, seed=drawn, coupling="rejection") == texts[0]
    assert len(set(drawn)) == len(PROMPTS)


def test_greedy_rows_take_nothing_from_torchs_generator(target: Any) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    result = Pair(target).generate(PROMPTS[:1], max_new_tokens=3)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert result.seed is None


@pytest.mark.parametrize(
    "options",
    [
        {"num_speculative_tokens_schedule": "adaptive"},
        {"assistant_confidence_threshold": 0.3},
        {"assistant_confidence_threshold": 1.0, "num_speculative_tokens_schedule": "adaptive"},
    ],
)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 3}])
def test_how_far_is_drafted_never_changes_a_row(
    target: Any, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    draft = tiny_model(seed=9)  # mostly wrong: drafting far does not pay
    expected = tokens_of(Pair(target), **settings)
    results = Pair(target, draft).generate(PROMPTS, max_new_tokens=NEW, **settings, **options)
    assert_same_tokens([result.token_ids for result in results], expected)
    constant = Pair(target, draft).generate(PROMPTS, max_new_tokens=NEW, **settings)
    drafted = [sum(r.stats.num_draft_tokens for r in rs) for rs in (results, constant)]
    assert 0 < drafted[0] < drafted[1]
