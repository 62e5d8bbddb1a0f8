"""Decoder layers as one function: the bits of transformers' modules, or the modules themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import draftproof
from draftproof import Pair
from draftproof.executors.confirm import confirm_stack
from draftproof.executors.padded import PaddedExecutor
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.models import demo_paths
from draftproof.numerics import torch_private
from draftproof.numerics.shapes import FAST, Rows, Shapes
from draftproof.numerics.stack import scripted
from draftproof.testing import random_prompts, tiny_model
from draftproof.types import RaggedTokens

SUBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied, biases": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral, sliding window": ("mistral", {}),
    "qwen2, biases, two kinds of layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3, norms of heads": ("qwen3", {}),
}
# chunks of a prompt (one wider than a shared call), blocks of drafts, single tokens; row 2 is late
STEPS = (
    ((0, 3), (1, 40)),
    ((0, 1), (1, 5), (2, 20)),
    ((0, 5), (1, 5), (2, 5)),
    ((0, 1), (2, 1)),
    ((1, 1),),
)


def bound(name: str, dtype: torch.dtype) -> BoundModel:
    architecture, options = SUBJECTS[name]
    return BoundModel(tiny_model(architecture, seed=1, **options).to(dtype))


def rounded(model: BoundModel) -> Shapes:
    """Shapes under which everything is filled up or cut into pieces."""
    rules = {product.kind: Rows((2, 6, 16)) for product in _stack(model).products}
    return Shapes(products=rules, tokens=4, queries=4, view=16, width=7, lone_row=False)


def _stack(model: BoundModel) -> Any:
    assert model.stack is not None
    return model.stack


def outcome(model: BoundModel, shapes: Shapes, *, padded: bool = False) -> list[Tensor]:
    """Logits of every step, and what was cached in the end."""
    parts: dict[str, Any] = {"model": model, "rows": 3, "capacity": 64, "shapes": shapes}
    executor = PaddedExecutor(**parts, spare=8) if padded else RowsExecutor(**parts)
    generator = torch.Generator().manual_seed(3)
    logits = []
    for step in STEPS:
        rows, counts = [row for row, _ in step], [count for _, count in step]
        tokens = RaggedTokens(
            ids=torch.randint(0, model.vocab_size, (sum(counts),), generator=generator),
            rows=rows,
            starts=[executor.lengths[row] for row in rows],
            counts=counts,
            keep=[min(count, 6) for count in counts],
        )
        logits.append(executor.forward(tokens))
    return [*logits, *executor.cache.keys, *executor.cache.values]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("padded", [False, True], ids=["rows", "padded"])
@pytest.mark.parametrize("scripted", [True, False], ids=["script", "python"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_bit_is_that_of_the_modules(
    name: str, dtype: torch.dtype, scripted: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not scripted:
        monkeypatch.setenv(torch_private.WITHOUT, torch_private.SCRIPT.name)
    model = bound(name, dtype)
    for shapes in (FAST, rounded(model)):
        found = outcome(model, shapes, padded=padded)
        taken, model.stack = _stack(model), None
        assert same(found, outcome(model, shapes, padded=padded))
        model.stack = taken


@pytest.mark.parametrize("padded", [False, True], ids=["rows", "padded"])
def test_both_layouts_run_as_one_function(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bound("llama", torch.float32)
    monkeypatch.setattr(model, "_by_modules", None)
    assert outcome(model, FAST, padded=padded)


def test_torchscript_takes_the_layers() -> None:
    assert scripted()


def test_others_run_as_modules() -> None:
    for architecture in ("granite", "gemma2", "olmo2", "mixtral", "gpt2"):
        assert BoundModel(tiny_model(architecture, seed=1)).stack is None


def test_a_hook_is_still_heard() -> None:
    model = bound("llama", torch.float32)
    layer = model.model.model.layers[1]
    heard: list[str] = []
    assert _stack(model).intact
    for module in (layer, layer.mlp.act_fn):
        handle = module.register_forward_hook(lambda *_: heard.append("hook"))
        outcome(model, FAST)
        assert heard
        heard.clear()
        handle.remove()
        outcome(model, FAST)
        assert not heard


def test_another_module_in_a_place_is_called() -> None:
    model = bound("llama", torch.float32)
    before = outcome(model, FAST)

    class Louder(torch.nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * hidden

    model.model.model.layers[0].mlp.act_fn = Louder()
    assert not same(before, outcome(model, FAST))


@pytest.mark.parametrize("change", [{"eps": 0.1}, {"scaling": 0.3}], ids=str)
def test_a_difference_is_found_when_the_model_is_made_ready(change: dict[str, float]) -> None:
    model = bound("llama", torch.float32)
    taken = _stack(model)
    confirm_stack(model)
    assert model.stack is taken
    taken.sizes = replace(taken.sizes, **change)
    confirm_stack(model)
    assert model.stack is None
    assert "differ" in model.notes[-1]


def test_weights_stay_what_they_were() -> None:
    plain, subject = (tiny_model("llama", seed=1) for _ in range(2))
    pair = Pair(subject, numerics="fast")
    pair.generate(random_prompts((5, 9)), max_new_tokens=4)
    found = subject.state_dict()
    for key, weight in plain.state_dict().items():
        assert torch.equal(weight, found[key])


def test_it_is_an_option_and_said() -> None:
    target, draft = demo_paths()
    results = []
    for script_layers in (True, False):
        pair = draftproof.load(target, draft, numerics="fast", script_layers=script_layers)
        said = any("one function" in note for note in pair.describe()["rewrites"])
        assert said is script_layers
        results.append(pair.generate(["Return a new", "The"], max_new_tokens=12))
    assert [r.token_ids for r in results[0]] == [r.token_ids for r in results[1]]
