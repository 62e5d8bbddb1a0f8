"""The exact tier and transformers' own `generate` at batch 1 under the same numerics: same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from draftproof.hf import BoundModel, same_numerics
from draftproof.numerics.shapes import Shapes
from draftproof.testing import random_prompts

from .exact import NEW_TOKENS, SUBJECTS, Run, reference, shapes_of, subject, without

# in transformers' loop, functions of single elements get rows as they are (docs/numerics.md)
NAMES = [name for name in SUBJECTS if name != "llama, odd width"]
PARAMS = [
    *(pytest.param(name, torch.float32, id=f"{name}, float32") for name in NAMES),
    *(pytest.param(name, torch.bfloat16, id=f"{name}, bfloat16") for name in NAMES[1:7:2]),
    *(pytest.param(name, torch.float16, id=f"{name}, float16") for name in NAMES[1:3]),
    pytest.param("llama, real width", torch.bfloat16, id="llama, real width, bfloat16"),
]


def generate(
    bound: BoundModel, shapes: Shapes, rows: Sequence[Sequence[int]], *, pads: int = 0
) -> Any:
    """transformers' greedy `generate`, with what it needs to give back its raw logits."""
    ids = torch.tensor([[0] * pads + list(row) for row in rows])
    mask = torch.ones_like(ids)
    mask[:, :pads] = 0
    with same_numerics(bound, shapes), torch.no_grad():
        return bound.model.generate(
            ids,
            attention_mask=mask,
            **{bound._cache_name: DynamicCache()},
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )


def as_run(outputs: Sequence[Any]) -> Run:
    ids = [output.sequences[0, -NEW_TOKENS:].tolist() for output in outputs]
    return Run(ids, [logits_of(output) for output in outputs])


def logits_of(output: Any) -> Tensor:
    """[new, V] of the first row."""
    return torch.stack([step[0] for step in output.logits])


@pytest.mark.parametrize(("name", "dtype"), PARAMS)
def test_generate_gives_the_same_ids_and_logits(name: str, dtype: torch.dtype) -> None:
    prompts, expected = reference(name, dtype)
    bound, shapes = BoundModel(subject(name, dtype)), shapes_of(name, dtype)
    outputs = [generate(bound, shapes, [prompt]) for prompt in prompts]
    found = as_run(outputs)
    # `generate` returns logits in float32
    expected = Run(expected.ids, [logits.to(found.logits[0].dtype) for logits in expected.logits])
    assert found.differences(expected) == []


def test_left_padding_changes_bits() -> None:
    """No rounding helps a padded row: its keys lie elsewhere in the kernel's blocks."""
    name, dtype = "llama, heads of 64, tied", torch.float32
    bound, shapes = BoundModel(subject(name, dtype)), shapes_of(name, dtype)
    differing = 0
    for prompt in random_prompts((9, 60, 120, 300), seed=4):
        plain = generate(bound, shapes, [prompt])
        for pads in (5, 37, 100):
            padded = generate(bound, shapes, [prompt], pads=pads)
            differing += not torch.equal(plain.logits[0], padded.logits[0])
            torch.testing.assert_close(plain.logits[0], padded.logits[0], rtol=1e-3, atol=1e-3)
    assert differing >= 1  # how many differ depends on the processor's vectors


def test_another_kernel_changes_bits() -> None:
    """The comparison is no tautology: under other shapes `generate` gives other logits."""
    name, dtype = "llama, heads of 64, tied", torch.float32
    prompts, expected = reference(name, dtype)
    bound, shapes = BoundModel(subject(name, dtype)), shapes_of(name, dtype)
    changed = without(shapes, tokens=1, queries=1, view=1, barred=())
    found = as_run([generate(bound, changed, [prompt]) for prompt in prompts])
    assert len(found.differences(expected)) > len(prompts) // 2
