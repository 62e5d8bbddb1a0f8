"""Real weights, real prompts: the token ids of transformers' own `generate` at batch 1.

`make test-real` with DRAFTPROOF_MODELS naming a folder that holds `smollm2` (SmolLM2-135M) and
`grown4` (a deeper model with the same tokenizer). In float32, so that equality is exact.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftproof import Pair
from draftproof.testing import assert_same_tokens, stock_generate

pytestmark = [pytest.mark.real_model, pytest.mark.shared, pytest.mark.slow]

LONGEST_PROMPT = 256
EOS = 2  # <|im_end|>


@dataclass(frozen=True)
class Subject:
    """A target with its own outputs, and what drafts for it."""

    target: Any
    prompts: list[list[int]]
    expected: list[list[int]]
    new_tokens: int
    drafts: dict[str, Any]


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def spec_bench(shared: Path, tokenizer: Any, count: int) -> list[list[int]]:
    """Every 20th question, first turn, without a chat template."""
    lines = (shared / "data" / "spec_bench" / "question.jsonl").read_text("utf-8").splitlines()
    questions = [json.loads(line)["turns"][0] for line in lines[7::20]]
    return [tokenizer(text)["input_ids"][:LONGEST_PROMPT] for text in questions[:count]]


def first_layers(model: Any, count: int) -> Any:
    """The model without its later layers: a draft that shares the vocabulary."""
    draft = copy.deepcopy(model)
    draft.model.layers = draft.model.layers[:count]
    draft.config.num_hidden_layers = count
    return draft


@pytest.fixture(scope="module")
def smollm2(real_models: Path, shared_folder: Path) -> Subject:
    target = load(real_models / "smollm2")
    drafts = {"ngram": "ngram", "model": first_layers(target, 27), "none": None}
    return subject(target, real_models / "smollm2", shared_folder, 24, 64, drafts)


@pytest.fixture(scope="module")
def grown4(real_models: Path, shared_folder: Path) -> Subject:
    drafts = {"ngram": "ngram", "model": load(real_models / "smollm2")}
    folder = real_models / "grown4"
    return subject(load(folder), folder, shared_folder, 8, 48, drafts)


def subject(
    target: Any, folder: Path, shared: Path, count: int, new_tokens: int, drafts: dict[str, Any]
) -> Subject:
    prompts = spec_bench(shared, AutoTokenizer.from_pretrained(folder), count)
    assert len(prompts) == count
    expected = [stock_generate(target, prompt, new_tokens, pad_token_id=EOS) for prompt in prompts]
    return Subject(target, prompts, expected, new_tokens, drafts)


def assert_equal_to_generate(given: Subject, draft: str, batch: int) -> None:
    pair = Pair(given.target, given.drafts[draft], numerics="fast")
    results = pair.generate(
        given.prompts,
        max_new_tokens=given.new_tokens,
        max_num_seqs=batch,
        num_speculative_tokens=4,
    )
    found = [result.token_ids for result in results]
    assert_same_tokens(found, given.expected, f"{draft}, batch {batch}")
    if draft != "none":
        assert sum(result.stats.num_accepted_draft_tokens for result in results) > 0


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_smollm2_equals_generate(smollm2: Subject, draft: str, batch: int) -> None:
    assert_equal_to_generate(smollm2, draft, batch)


def test_smollm2_without_drafts_in_a_batch_equals_generate(smollm2: Subject) -> None:
    assert_equal_to_generate(smollm2, "none", 8)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_grown4_equals_generate(grown4: Subject, draft: str, batch: int) -> None:
    assert_equal_to_generate(grown4, draft, batch)
