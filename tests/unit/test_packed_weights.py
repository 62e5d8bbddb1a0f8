"""Packed weights: what stays of a model's own, what comes back, how many shapes are compiled."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import draftproof
from draftproof import Pair
from draftproof.hf import BoundModel
from draftproof.models import demo_paths
from draftproof.numerics import linear
from draftproof.numerics.linear import CalibratedLinear
from draftproof.numerics.shapes import COARSE, FAST, SIZES
from draftproof.testing import random_prompts, tiny_model

DTYPES = [torch.float32, torch.bfloat16]


def linears(model: nn.Module) -> list[CalibratedLinear]:
    return [m for m in model.modules() if isinstance(m, CalibratedLinear)]


def untied(dtype: torch.dtype = torch.float32) -> nn.Module:
    return tiny_model("llama", tie_word_embeddings=False).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropped_weights_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    model = untied(dtype)
    before = copy.deepcopy(model.state_dict())
    bound = BoundModel(model, owned=True, lone_row=False)
    assert linears(model)
    assert all(layer.weight.is_meta for layer in linears(model))
    twin = copy.deepcopy(model)
    for state in (model.state_dict(), twin.state_dict()):
        assert list(state) == list(before)
        assert all(torch.equal(state[name], before[name]) for name in before)
        assert all(state[name].dtype is before[name].dtype for name in before)
    bound.release()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_model_whose_weights_were_dropped_still_runs_by_itself() -> None:
    model = untied()
    ids = torch.tensor([[1, 2, 3]])
    before = model(ids).logits
    BoundModel(model, owned=True)
    torch.testing.assert_close(model(ids).logits, before)


def test_a_model_may_be_bound_again_after_its_weights_were_dropped() -> None:
    model, prompts = untied(), random_prompts((3, 17, 8))
    expected = Pair(copy.deepcopy(model)).generate(prompts, max_new_tokens=8)
    BoundModel(model, owned=True, lone_row=False)
    found = Pair(model).generate(prompts, max_new_tokens=8)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


def test_weights_that_others_use_are_kept() -> None:
    tied = tiny_model("llama", tie_word_embeddings=True)
    BoundModel(tied, owned=True)
    assert not tied.lm_head.weight.is_meta
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    shared = untied()
    BoundModel(shared)
    assert not any(layer.weight.is_meta for layer in linears(shared))


def test_loaded_models_hold_one_copy_of_their_weights(tmp_path: Path) -> None:
    untied().save_pretrained(tmp_path)
    tokenizer = demo_paths()[0]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(tokenizer) / name).read_bytes())
    pair = draftproof.load(tmp_path, dtype="float32")
    target = pair._target
    assert target.rewrite.dropped_bytes == target.rewrite.packed_bytes > 0
    assert target.weight_bytes == sum(p.nbytes for p in untied().parameters())
    assert "in place of" in pair.describe()["rewrites"][0]


def test_a_wide_weight_leaves_the_short_one_for_single_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "lacks_kernel", lambda dtype, device: True)
    for lone_row in (True, False):
        model = untied(torch.bfloat16)
        BoundModel(model, owned=True, lone_row=lone_row)
        assert all(layer.weight.is_meta is not lone_row for layer in linears(model))


def test_few_row_counts_are_ever_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plain = set(), linear.multiply_packed

    def noting(rows: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        seen.add(len(rows))
        return plain(rows, *rest)

    monkeypatch.setattr(linear, "multiply_packed", noting)
    bound = BoundModel(untied())
    layer = linears(bound.model)[0]
    for count in range(1, 1100):
        given = torch.randn(1, count, layer.in_features)
        out = layer.product.of(layer, given, FAST)
        if count in (33, 700):
            torch.testing.assert_close(out, functional.linear(given, layer.weight, layer.bias))
    assert seen <= set(SIZES)
    assert seen >= set(COARSE.sizes) - {1}
