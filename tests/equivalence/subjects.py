"""Models and oracles that several test modules share, made once per process."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch

from draftproof import Pair
from draftproof.testing import Oracle, assert_same_tokens, tiny_model

K = 4
LENGTHS = (3, 40, 7, 1, 23, 12, 31, 5)


@functools.cache
def oracle(name: str = "llama", lengths: tuple[int, ...] = LENGTHS, tokens: int = 24) -> Oracle:
    """A tiny model of an architecture, prompts unlike each other, and their continuations."""
    return Oracle.of(tiny_model(name, seed=1), lengths, tokens=tokens, seed=7)


@functools.cache
def near_copy(name: str = "llama", noise: float = 0.08) -> Any:
    """The target with noise on its weights: a draft that is right often and wrong often."""
    model = copy.deepcopy(oracle(name).model)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            size = noise * float(parameter.std(unbiased=False))
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model


def pair(model: Any, draft: Any = None, **options: Any) -> Pair:
    """In float32 every tier gives the reference's tokens; this one needs no calibration."""
    return Pair(model, draft, numerics="fast", **options)


def generated(
    model: Any, draft: Any, prompts: Sequence[Any], *, method: Any = "rows", **options: Any
) -> list[list[int]]:
    """Token ids of `Pair.generate`, every invariant checked in every round."""
    results = pair(model, draft, method=method).generate(prompts, **{"debug": True, **options})
    return [result.token_ids for result in results]


def assert_all_drafters_agree(
    subject: Oracle, expected: list[list[int]], label: str = "", **options: Any
) -> None:
    """Scripted, n-gram and model drafts and none at all give the expected tokens."""
    offsets = [(index * 2) % (K + 1) for index in range(len(subject.prompts))]
    drafters = {
        "none": None,
        "ngram": "ngram",
        "scripted": subject.drafter(offsets),
        "the target itself": subject.model,
    }
    for name, draft in drafters.items():
        found = generated(subject.model, draft, subject.prompts, **options)
        assert_same_tokens(found, expected, f"{label} {name}")
