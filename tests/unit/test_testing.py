"""The tools of the tests: tiny models, scripts, comparisons. A blunt tool would hide a fault."""

from __future__ import annotations

import pytest
import torch

from draftproof.batch import Request, Row
from draftproof.testing import (
    ARCHITECTURES,
    Oracle,
    ScriptedDrafter,
    assert_same_tokens,
    cut_at,
    random_prompts,
    stock_generate,
    tiny_model,
    tiny_tokenizer,
)


def test_a_difference_is_shown_with_what_lies_around_it() -> None:
    expected, found = [list(range(30)), [7], [4, 5, 6]], [list(range(30)), [7, 8], [4, 9, 6]]
    assert_same_tokens(expected, expected)
    with pytest.raises(AssertionError) as caught:
        assert_same_tokens(found, expected, "the label")
    assert str(caught.value).splitlines() == [
        "the label: 2 of 3 rows differ",
        "row 1, first at position 1:",
        "  expected 7 [end]  (1 tokens)",
        "  found    7 [8]  (2 tokens)",
        "row 2, first at position 1:",
        "  expected 4 [5] 6  (3 tokens)",
        "  found    4 [9] 6  (3 tokens)",
    ]


def test_a_long_row_is_shown_in_part() -> None:
    expected = list(range(30))
    with pytest.raises(
        AssertionError, match=r"\.\.\. 9 10 11 12 13 14 \[15\] 16 .* 21 \.\.\.  \(30 t"
    ):
        assert_same_tokens([[*expected[:15], 99, *expected[16:]]], [expected])


def test_a_missing_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer than"):
        assert_same_tokens([[1]], [[1], [2]])


def test_prompts_are_seeded_and_unlike_each_other() -> None:
    prompts = random_prompts([1, 8, 8, 60], seed=3)
    assert [len(prompt) for prompt in prompts] == [1, 8, 8, 60]
    assert prompts == random_prompts([1, 8, 8, 60], seed=3) != random_prompts([1, 8, 8, 60], seed=4)
    assert prompts[1] != prompts[2]


def scripted(wrong_at: int | list[int], emitted: int, count: int, **options: int) -> list[int]:
    drafter = ScriptedDrafter(continuations=[[10, 11, 12, 13, 14, 0]], wrong_at=wrong_at, **options)
    row = Row(slot=0, request=Request(index=0, prompt=[1]), tokens=[1] * (1 + emitted))
    drafts = drafter.propose([row], [count])
    return drafts.ids[0, : drafts.counts[0]].tolist()


@pytest.mark.parametrize(
    ("wrong_at", "emitted", "count", "drafts"),
    [
        (4, 1, 4, [11, 12, 13, 14]),
        (2, 1, 4, [11, 12, 0, 14]),
        ([0], 1, 2, [0, 12]),
        (1, 4, 4, [14, 1]),  # where 0 is right, 1 is wrong; and the script ends here
        (0, 6, 4, []),
        (0, 1, 0, []),
    ],
)
def test_a_script_is_right_but_for_one_token(
    wrong_at: int | list[int], emitted: int, count: int, drafts: list[int]
) -> None:
    assert scripted(wrong_at, emitted, count) == drafts


def test_the_wrong_token_may_be_chosen() -> None:
    assert scripted(1, 0, 3, wrong=999) == [10, 999, 12]


def test_models_are_seeded_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(0)
    one, state = tiny_model("qwen3", seed=4), torch.random.get_rng_state()
    other = tiny_model("qwen3", seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in pairs)
    assert not torch.equal(one.lm_head.weight, tiny_model("qwen3", seed=5).lm_head.weight)


def test_unknown_architectures_and_renamed_options() -> None:
    with pytest.raises(KeyError, match="nothing"):
        tiny_model("nothing")
    assert tiny_model("gpt2", num_hidden_layers=1).config.n_layer == 1
    assert ARCHITECTURES["mistral"].windowed
    assert not ARCHITECTURES["llama"].windowed


def test_the_oracle_is_the_reference_cut_to_size() -> None:
    oracle = Oracle.of(tiny_model(seed=1), (3, 9), tokens=5)
    new = oracle.continuations
    assert oracle.expected(2) == [new[0][:2], new[1][:2]]
    assert oracle.expected([0, 4], [[], [new[1][1]]]) == [[], cut_at(new[1][:4], [new[1][1]])]
    assert oracle.pick([1]).expected(5) == [stock_generate(oracle.model, oracle.prompts[1], 5)]


def test_the_tokenizer_covers_any_text_and_merges_what_it_is_told() -> None:
    tokenizer = tiny_tokenizer([("t", "h"), ("th", "e")])
    ids = tokenizer("the th é\n")["input_ids"]
    assert ids == [257, 32, 256, 32, 0xC3, 0xA9, 10]
    assert tokenizer.decode(ids) == "the th é\n"
    assert tokenizer.decode([*tokenizer("<|end|>")["input_ids"]]) == tokenizer.eos_token
