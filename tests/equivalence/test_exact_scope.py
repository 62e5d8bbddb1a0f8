"""The scope of the exact tier, point by point: every K, batch sizes to 32, long rows, threads.

`test_exact.py` draws settings; here each edge of the promise is in every run.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftproof import Pair
from draftproof.testing import noisy_copy, random_prompts

from .exact import alone, cut, prefill, run, shapes_of, subject

REAL_WIDTH = "llama, real width"
HEADS_OF_64 = "llama, heads of 64, tied"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NEW_TOKENS = 5
# every K from 0 to 8, and batch sizes on both sides of the row counts at which kernels change
GRID = ((2, 0), (32, 1), (31, 2), (5, 3), (9, 4), (17, 5), (3, 6), (32, 7), (1, 8), (13, 8))


def short_prompts(count: int = 32) -> list[list[int]]:
    """Short, so that a round of 32 rows is mostly their drafts; one that reaches past 32."""
    return random_prompts([1 + 5 * n % 23 for n in range(count - 1)] + [40], seed=8)


def limits(count: int, most: int) -> list[int]:
    """Rows finish at different times."""
    return [1 + (3 * n + most - 1) % most for n in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_k_and_up_to_32_rows(dtype: torch.dtype) -> None:
    model, prompts = subject(REAL_WIDTH, dtype), short_prompts()
    expected = alone(Pair(model, numerics="exact"), prompts, max_new_tokens=NEW_TOKENS)
    assert len({token for ids in expected.ids for token in ids}) > 8, "stuck on a few tokens"
    pairs = [Pair(model, draft, numerics="exact") for draft in (noisy_copy(model), "ngram")]
    draw = random.Random(1)
    # in 16 bits every other point: the others are float32's
    for number, (rows, drafted) in enumerate(GRID):
        if dtype is not torch.float32 and number % 2:
            continue
        counts = limits(len(prompts), NEW_TOKENS)
        found = run(
            pairs[number % 2 if dtype is torch.float32 else number // 2 % 2],
            prompts,
            draw.sample(range(len(prompts)), len(prompts)),
            max_new_tokens=counts,
            max_num_seqs=rows,
            num_speculative_tokens=drafted,
            max_num_batched_tokens=draw.choice((48, 300, 2000)),
        )
        assert found.differences(cut(expected, counts)) == [], (rows, drafted)


def long_rows() -> Iterator[list[int]]:
    """Rows that end on both sides of 16, 512, 1,024 and 2,000 while they decode."""
    yield from random_prompts((1, 14, 510, 1021, 1995), seed=6)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(HEADS_OF_64, torch.float32), (HEADS_OF_64, torch.bfloat16)],
    ids=["float32", "bfloat16"],
)
def test_rows_of_1_to_2000_tokens_side_by_side(name: str, dtype: torch.dtype) -> None:
    model, prompts = subject(name, dtype), list(long_rows())
    expected = alone(Pair(model, numerics="exact"), prompts, max_new_tokens=NEW_TOKENS)
    pair = Pair(model, noisy_copy(model), numerics="exact")
    for order, rows, budget in (((0, 1, 2, 3, 4), 5, 512), ((4, 2, 0, 3, 1), 2, 333)):
        found = run(
            pair,
            prompts,
            order,
            max_new_tokens=NEW_TOKENS,
            max_num_seqs=rows,
            num_speculative_tokens=4,
            max_num_batched_tokens=budget,
        )
        assert found.differences(expected) == [], (rows, budget)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_cached_steps_of_long_rows_equal_one_uncached_forward(dtype: torch.dtype) -> None:
    model = subject(HEADS_OF_64, dtype)
    prompts = list(long_rows())[2:]
    found = alone(Pair(model, numerics="exact"), prompts, max_new_tokens=NEW_TOKENS)
    shapes = shapes_of(HEADS_OF_64, dtype)
    for prompt, ids, logits in zip(prompts, found.ids, found.logits, strict=True):
        whole = prefill(HEADS_OF_64, dtype, prompt + ids[:-1], shapes)
        assert torch.equal(whole[len(prompt) - 1 :], logits), len(prompt)


THREADS = """
import sys
import torch
torch.set_num_threads({threads})
sys.path.insert(0, {folder!r})
from equivalence import test_exact_scope as scope
for dtype in (torch.float32, torch.bfloat16):
    print(scope.differences_with_threads(dtype))
print(torch.get_num_threads())
"""


def differences_with_threads(dtype: torch.dtype) -> list[str]:
    """What differs between rows alone and a batch, with calls wide enough to be shared out."""
    model, prompts = subject(REAL_WIDTH, dtype), [*short_prompts(8), *random_prompts((530,))]
    expected = alone(Pair(model, numerics="exact"), prompts, max_new_tokens=4)
    pair = Pair(model, noisy_copy(model), numerics="exact")
    found = [
        run(
            pair,
            prompts,
            range(9),
            max_new_tokens=4,
            max_num_seqs=rows,
            num_speculative_tokens=drafted,
            max_num_batched_tokens=budget,
        ).differences(expected)
        for rows, drafted, budget in ((9, 4, 512), (4, 2, 64))
    ]
    return list(itertools.chain.from_iterable(found))


@pytest.mark.parametrize("threads", [1, 2])
def test_one_and_two_threads(threads: int) -> None:
    """In a process of its own: a verdict holds for the number of threads it was reached with."""
    code = THREADS.format(threads=threads, folder=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.stdout.split("\n") == ["[]", "[]", str(threads), ""], done.stderr
