"""The paper's methods write what the reference writes, for every model, prompt, K and grouping."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from draftproof import InputError, Pair, UnsupportedArgumentError, UnsupportedModelError
from draftproof.reference import reference
from draftproof.testing import (
    ARCHITECTURES,
    ScriptedDrafter,
    assert_same_tokens,
    random_prompts,
    tiny_model,
)

METHODS = ("rows", "eqspec", "exspec", "rollback")
LENGTHS = (3, 17, 40, 9, 1, 25)
NEW = 14


@functools.cache
def model(architecture: str, seed: int = 0) -> Any:
    return tiny_model(architecture, seed=seed)


@functools.cache
def expected(architecture: str, lengths: tuple[int, ...] = LENGTHS, new: int = NEW) -> Any:
    return [reference(model(architecture), p, new) for p in random_prompts(lengths, seed=3)]


def decode(
    architecture: str,
    method: str,
    draft: Any,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    method_options: dict[str, Any] | None = None,
    **options: Any,
) -> list[list[int]]:
    pair = Pair(model(architecture), draft, method=method, method_options=method_options)
    settings = {"max_new_tokens": NEW, "max_num_seqs": 3, "debug": True, **options}
    return [r.token_ids for r in pair.generate(random_prompts(lengths, seed=3), **settings)]


def scripted(architecture: str, wrong_at: int | Sequence[int]) -> ScriptedDrafter:
    return ScriptedDrafter(continuations=expected(architecture), wrong_at=wrong_at)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_architecture(architecture: str, method: str) -> None:
    """Each row accepts another number of drafts, so that rows part in every round."""
    try:
        Pair(model(architecture))
    except UnsupportedModelError as error:
        pytest.skip(f"refused, whatever the method: {error}")
    draft = scripted(architecture, wrong_at=(0, 1, 2, 3, 4, 1))
    assert_same_tokens(decode(architecture, method, draft), expected(architecture), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 2, 6])
def test_with_a_draft_model(method: str, k: int, rows: int) -> None:
    """A draft of the same architecture; rows of the draft's cache lag by one token or by two."""
    found = decode(
        "llama", method, model("llama", seed=1), num_speculative_tokens=k, max_num_seqs=rows
    )
    assert_same_tokens(found, expected("llama"), method)


@pytest.mark.parametrize("method", METHODS)
def test_the_target_as_its_own_draft_is_always_accepted(method: str) -> None:
    """Acceptance decays as soon as one entry of the draft's cache is wrong."""
    pair = Pair(model("qwen3"), model("qwen3"), method=method)
    prompts = random_prompts((5, 30, 11), seed=8)
    results = pair.generate(prompts, max_new_tokens=41, max_num_seqs=3, debug=True)
    assert [r.stats.draft_acceptance_rate for r in results] == [1.0, 1.0, 1.0]
    assert_same_tokens(
        [r.token_ids for r in results], [reference(model("qwen3"), p, 41) for p in prompts]
    )


@pytest.mark.parametrize("method", METHODS)
def test_ragged_drafts_and_plain_rows(method: str) -> None:
    """N-gram drafts differ in number from row to row; with K = 0 nothing is drafted."""
    for draft, k in (("ngram", 4), (None, 0), (model("llama", seed=1), 0)):
        found = decode("llama", method, draft, num_speculative_tokens=k)
        assert_same_tokens(found, expected("llama"), f"{method}, {draft}")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [1, 7, 512])
def test_prompts_in_chunks(method: str, budget: int) -> None:
    """A chunk leaves a row between two lengths; new rows join while others decode."""
    draft = model("gemma2", seed=1)
    found = decode("gemma2", method, draft, max_num_batched_tokens=budget, max_num_seqs=2)
    assert_same_tokens(found, expected("gemma2"), method)


@pytest.mark.parametrize("method", METHODS)
def test_eos_at_every_place_of_the_first_rounds(method: str) -> None:
    references = expected("llama")
    for place in range(8):
        eos = [[tokens[place]] for tokens in references]
        ends = [tokens.index(end[0]) + 1 for tokens, end in zip(references, eos, strict=True)]
        found = decode("llama", method, scripted("llama", wrong_at=3), eos_token_id=eos)
        wanted = [tokens[:end] for tokens, end in zip(references, ends, strict=True)]
        assert_same_tokens(found, wanted, f"{method}, eos at {place}")


@pytest.mark.parametrize("method", METHODS)
def test_budgets_and_contexts_differ_from_row_to_row(method: str) -> None:
    budgets = [1, 14, 2, 0, 9, 5]
    found = decode("llama", method, scripted("llama", wrong_at=4), max_new_tokens=budgets)
    wanted = [tokens[:n] for tokens, n in zip(expected("llama"), budgets, strict=True)]
    assert_same_tokens(found, wanted, method)
    short = decode("llama", method, scripted("llama", wrong_at=2), max_model_len=45)
    wanted = [
        tokens[: 46 - length] for tokens, length in zip(expected("llama"), LENGTHS, strict=True)
    ]
    assert_same_tokens(short, wanted, method)


@pytest.mark.parametrize("policy", ["first_full", "largest", "oldest"])
@pytest.mark.parametrize("window", [1, 3, 4, 6])
@pytest.mark.parametrize("sort", [False, True])
def test_exspec_windows_policies_and_order(policy: str, window: int, sort: bool) -> None:
    options = {"window_size": window, "policy": policy, "sort_by_length": sort, "waiting_limit": 2}
    draft = scripted("llama", wrong_at=(0, 1, 2, 3, 4, 1))
    found = decode("llama", "exspec", draft, method_options=options, max_num_seqs=2)
    assert_same_tokens(found, expected("llama"), f"{policy}, {window}")


def test_unknown_methods_and_options_are_refused() -> None:
    target = model("llama")
    with pytest.raises(UnsupportedArgumentError, match="bsp.*rows, eqspec, exspec, rollback"):
        Pair(target, method="bsp")
    with pytest.raises(UnsupportedArgumentError, match="'eqspec' has no option 'window_size'"):
        Pair(target, method="eqspec", method_options={"window_size": 4})
    for name, value in (("window_size", 0), ("waiting_limit", 0), ("policy", "youngest")):
        with pytest.raises(InputError, match=name):
            Pair(target, method="exspec", method_options={name: value})
