"""The faulty methods show the corruption that the paper reports, and the checks see its cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof import Pair
from draftproof.baselines import BSP, DSD
from draftproof.baselines.bsp import HoledExecutor
from draftproof.baselines.dsd import CroppedExecutor
from draftproof.engine.methods import Method
from draftproof.errors import InvariantError
from draftproof.executors.alignment import check_positions
from draftproof.hf import BoundModel
from draftproof.reference import reference
from draftproof.testing import ScriptedDrafter, random_prompts, tiny_model
from draftproof.types import RaggedTokens

PROMPTS = random_prompts((3, 17, 30, 9), seed=3)
NEW = 20


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def expected(target: Any) -> list[list[int]]:
    return [reference(target, prompt, NEW) for prompt in PROMPTS]


def decode(target: Any, method: Method, draft: Any, rows: int = 4) -> list[list[int]]:
    pair = Pair(target, draft, method=method)
    results = pair.generate(PROMPTS, max_new_tokens=NEW, max_num_seqs=rows, debug=True)
    return [result.token_ids for result in results]


def first_difference(found: list[int], expected: list[int]) -> int:
    pairs = zip(found, expected, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))


@pytest.mark.parametrize("method", [BSP(), DSD()], ids=lambda method: method.name)
@pytest.mark.parametrize("draft", ["none", "always right"])
def test_without_a_rejection_they_are_right(
    target: Any, expected: list[list[int]], method: Method, draft: str
) -> None:
    """The control: what goes wrong below goes wrong because of rejections."""
    right = ScriptedDrafter(continuations=expected, wrong_at=4)
    found = decode(target, method, None if draft == "none" else right)
    assert found == expected


@pytest.mark.parametrize("rows", [1, 4])
def test_bsp_writes_wrong_tokens_after_the_first_rejection(
    target: Any, expected: list[list[int]], rows: int
) -> None:
    """Round one: a accepted drafts and a correction, all right. The gap comes after them."""
    draft = ScriptedDrafter(continuations=expected, wrong_at=(0, 1, 2, 3))
    found = decode(target, BSP(), draft, rows)
    places = [first_difference(a, b) for a, b in zip(found, expected, strict=True)]
    # the token of the prefill, a accepted ones and the correction come before the first gap
    assert all(place >= 2 + a for a, place in enumerate(places))
    assert all(place < NEW for place in places)


def test_dsd_emits_the_drafts_mistake_itself(target: Any, expected: list[list[int]]) -> None:
    draft = ScriptedDrafter(continuations=expected, wrong_at=2)
    found = decode(target, DSD(), draft)
    for row, right in zip(found, expected, strict=True):
        assert first_difference(row, right) == 3  # the prefill's token, two accepted, then:
        assert row[3] == (0 if right[3] else 1)  # the wrong token that was scripted


def test_dsd_repeats_a_draft_that_always_says_the_same(
    target: Any, expected: list[list[int]]
) -> None:
    """The paper's "not not not": whatever the draft insists on is what is written."""
    draft = ScriptedDrafter(continuations=expected, wrong_at=0, wrong=7)
    found = decode(target, DSD(), draft)
    assert all(row[1:-1] == [7] * (NEW - 2) for row in found)  # the last one is not drafted
    assert all(row.count(7) <= 2 for row in expected)


# -- the causes, seen by the checks of the correct methods -----------------------------------------


def feed(*rows: tuple[int, int, int, int]) -> RaggedTokens:
    names, starts, counts, keep = zip(*rows, strict=True)
    ids = torch.arange(sum(counts))
    return RaggedTokens(ids=ids, rows=names, starts=starts, counts=counts, keep=keep)


def after_a_ragged_round(kind: Any, target: Any) -> Any:
    """Row 0 keeps all of three fed tokens, row 1 one of them."""
    executor = kind(model=BoundModel(target), rows=2, capacity=20, drafted=2)
    executor.forward(feed((0, 0, 4, 1), (1, 0, 4, 1)))
    executor.forward(feed((0, 4, 3, 3), (1, 4, 3, 3)))
    executor.truncate(1, 5)
    executor.settle()
    return executor.place(feed((0, 7, 1, 1), (1, 5, 1, 1)))


def test_bsp_breaks_the_contiguity_of_positions(target: Any) -> None:
    rectangle = after_a_ragged_round(HoledExecutor, target)
    assert rectangle.positions.tolist() == [[7], [7]]  # row 1 has five tokens: expected 5
    with pytest.raises(InvariantError, match=r"I2, row 1: .*found holes"):
        check_positions([0, 1], rectangle.content, rectangle.positions, rectangle.live)


def test_dsd_forgets_tokens_of_the_row_that_was_right(target: Any) -> None:
    rectangle = after_a_ragged_round(CroppedExecutor, target)
    assert rectangle.content.sum(1).tolist() == [6, 6]  # row 0 had seven, and feeds the eighth
    with pytest.raises(InvariantError, match=r"I2, row 0: positions expected \[5\], found \[7\]"):
        check_positions([0, 1], rectangle.content, rectangle.positions, rectangle.live)


def test_prompts_that_take_too_many_columns_are_refused(target: Any) -> None:
    pair = Pair(target, None, method=BSP())
    options = {"max_new_tokens": 2, "num_speculative_tokens": 0, "max_num_seqs": 12}
    assert len(pair.generate(PROMPTS * 3, **options)) == 12
    with pytest.raises(InvariantError, match="max_num_batched_tokens"):
        pair.generate(PROMPTS * 3, **options, max_num_batched_tokens=1)
