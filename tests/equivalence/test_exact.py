"""The exact tier: the same bits whatever the batch, the drafts, the chunks and the order."""

from __future__ import annotations

import pytest
import torch

from draftproof import Pair
from draftproof.testing import random_prompts

from .exact import (
    LENGTHS,
    NEW_TOKENS,
    SUBJECTS,
    alone,
    cut,
    prefill,
    reference,
    run,
    settings,
    shapes_of,
    subject,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS_OF_64 = "llama, heads of 64, tied"
EVERY = [
    pytest.param(name, dtype, id=f"{name}, {str(dtype).removeprefix('torch.')}")
    for name in SUBJECTS
    for dtype in DTYPES
]
# in the quick run: every subject in float32, some in 16 bits
QUICK = [
    *(param for param in EVERY if param.values[1] is torch.float32),
    pytest.param(HEADS_OF_64, torch.bfloat16, id="heads of 64, bfloat16"),
    pytest.param("mixtral, experts", torch.bfloat16, id="mixtral, bfloat16"),
    pytest.param("mistral, sliding window", torch.bfloat16, id="mistral, bfloat16"),
    pytest.param(HEADS_OF_64, torch.float16, id="heads of 64, float16"),
]


@pytest.mark.parametrize(("name", "dtype"), QUICK)
def test_batch_drafts_chunks_and_order_change_no_bit(name: str, dtype: torch.dtype) -> None:
    expected = reference(name, dtype)[1]
    assert len({token for ids in expected.ids for token in ids}) > 8, "stuck on a few tokens"
    for setting in settings(f"{name} {dtype}", count=2):
        assert setting.run(name, dtype).differences(cut(expected, setting.limits)) == [], setting


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_many_settings_change_no_bit(name: str, dtype: torch.dtype) -> None:
    expected = reference(name, dtype)[1]
    for setting in settings(f"more {name} {dtype}", count=25):
        assert setting.run(name, dtype).differences(cut(expected, setting.limits)) == [], setting


@pytest.mark.parametrize(("name", "dtype"), QUICK)
def test_cached_steps_equal_one_uncached_forward(name: str, dtype: torch.dtype) -> None:
    prompts, expected = reference(name, dtype)
    for prompt, ids, logits in zip(prompts, expected.ids, expected.logits, strict=True):
        whole = prefill(name, dtype, prompt + ids[:-1], shapes_of(name, dtype))
        assert torch.equal(whole[len(prompt) - 1 :], logits), len(prompt)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_rows_than_were_promised(dtype: torch.dtype) -> None:
    prompts = random_prompts([n % 50 + 1 for n in range(0, 400, 10)], seed=5)
    plain = Pair(subject(HEADS_OF_64, dtype), numerics="exact")
    pair = Pair(plain._target.model, plain._target.model, numerics="exact")
    batched = run(
        pair, prompts, range(40), max_num_seqs=40, num_speculative_tokens=8, max_new_tokens=5
    )
    assert batched.differences(alone(plain, prompts, max_new_tokens=5)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [HEADS_OF_64, "mistral, sliding window", "gemma2, softcap"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_long_contexts(name: str, dtype: torch.dtype) -> None:
    prompts = random_prompts((1000, 30, 1018, 1500, 1990, 1), seed=6)
    plain = Pair(subject(name, dtype), numerics="exact")
    expected = alone(plain, prompts, max_new_tokens=10)
    pair = Pair(plain._target.model, "ngram", numerics="exact")
    for order, rows, budget in ((range(6), 6, 512), ((4, 2, 0, 1, 3, 5), 3, 700)):
        batched = run(
            pair,
            prompts,
            order,
            max_num_seqs=rows,
            num_speculative_tokens=5,
            max_num_batched_tokens=budget,
            max_new_tokens=10,
        )
        assert batched.differences(expected) == []


def test_the_comparison_sees_one_bit() -> None:
    expected = reference("llama", torch.float32)[1]
    changed = cut(expected, [NEW_TOKENS] * len(LENGTHS))
    changed.logits[4] = changed.logits[4].clone()
    changed.logits[4][2, 7] = torch.nextafter(changed.logits[4][2, 7], torch.tensor(9.0))
    found = changed.differences(cut(expected, [NEW_TOKENS] * len(LENGTHS)))
    assert found == ["row 4: logits from new token 2 on"]
