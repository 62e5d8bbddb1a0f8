"""Probes on layers whose rows do and do not stand alone, and what becomes of a verdict."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from draftproof import NumericsError, Pair
from draftproof.executors import calibration
from draftproof.executors.calibration import calibrate, first_dependent_module
from draftproof.hf import BoundModel
from draftproof.hf.depth import few_layers
from draftproof.numerics import store
from draftproof.numerics.attention import AttentionShape
from draftproof.numerics.linear import in_pieces
from draftproof.numerics.probes import (
    SIZES,
    AttentionCase,
    attention_shapes,
    cancelling,
    row_rule,
    whole_vectors,
)
from draftproof.numerics.shapes import Rows, Shapes
from draftproof.testing import tiny_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    return tmp_path


# -- shapes ---------------------------------------------------------------------------------------


def test_views_skip_what_is_barred() -> None:
    shapes = Shapes(view=16, long_view=512, barred=(32, 48, 128))
    assert [shapes.view_of(n) for n in (1, 16, 17, 49, 113, 128, 129, 512, 513, 1025)] == [
        *(16, 16, 64, 64, 144, 144, 144, 512, 1024, 1536)
    ]


# -- rows -----------------------------------------------------------------------------------------


def rows_for_probes(dtype: torch.dtype = torch.float32) -> Tensor:
    return cancelling(8, 8, dtype)[0]


@pytest.mark.parametrize("least", [1, 2, 8, 16])
def test_sizes_that_agree_are_found(least: int) -> None:
    def layer(rows: Tensor) -> Tensor:
        return rows * 2 if len(rows) >= least else rows * 2 + len(rows)

    rule = row_rule(layer, rows_for_probes())
    assert rule is not None
    assert rule.sizes == tuple(size for size in SIZES if size >= least)


def test_the_cheapest_of_several_sets_is_taken() -> None:
    few = row_rule(lambda rows: rows * 2 + (len(rows) > 256), rows_for_probes())
    many = row_rule(lambda rows: rows * 2 + (len(rows) > 2), rows_for_probes())
    assert few is not None
    assert many is not None
    assert (few.sizes[0], few.most) == (1, 256)  # two pieces now and then
    assert (many.sizes[0], many.most) == (3, 512)  # rather than two rows at a time


def test_no_sizes_help_a_layer_that_mixes_rows() -> None:
    assert row_rule(lambda rows: rows - rows.mean(0), torch.randn(65, 8)) is None


def test_the_place_of_a_row_in_the_call_matters_too() -> None:
    assert row_rule(lambda rows: rows + torch.arange(len(rows))[:, None], torch.ones(65, 8)) is None


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8, 9, 17, 100])
def test_a_layer_is_called_with_the_sizes_allowed_only(count: int) -> None:
    calls: list[int] = []

    def layer(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return rows * 2

    rows = torch.randn(count, 3)
    assert torch.equal(in_pieces(layer, rows, Rows((4, 8))), rows * 2)
    assert set(calls) <= {0 if count == 0 else 4, 8}
    assert len(calls) == max(1, -(-count // 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cancelling_sums_show_the_order_of_additions(dtype: torch.dtype) -> None:
    """What the probes are made of: another order changes most elements, in 16 bits too."""
    rows, weight = (part.float() for part in cancelling(64, 48, dtype))
    products = rows[:40, None] * weight[None]  # [M, out, in]
    forth = torch.zeros(40, 48)
    back = torch.zeros(40, 48)
    for column in range(64):
        forth += products[..., column]
        back += products[..., 63 - column]
    assert (forth.to(dtype) != back.to(dtype)).float().mean() > 0.5
    assert forth.abs().max() < 1e-4


@pytest.mark.parametrize("width", [45, 46, 24, 1, 576])
def test_whole_vectors_leave_no_rest_to_other_code(width: int) -> None:
    multiple = whole_vectors([width], torch.float32)
    rows = torch.randn(256, width, generator=torch.Generator().manual_seed(0))
    whole = functional.silu(rows)
    assert torch.equal(torch.cat([functional.silu(part) for part in rows.split(multiple)]), whole)


def test_a_rest_of_a_vector_is_computed_by_other_code() -> None:
    """The control of the test above, and the reason for it."""
    rows = torch.randn(256, 45, generator=torch.Generator().manual_seed(0))
    parts = torch.cat([functional.silu(part) for part in rows.split(1)])
    if torch.equal(parts, functional.silu(rows)):
        pytest.skip("on this machine the rest of a vector is computed like the vector")
    assert not torch.equal(parts, functional.silu(rows))


# -- attention ------------------------------------------------------------------------------------


def case(**changes: Any) -> AttentionCase:
    sizes = {"heads": 4, "kv_heads": 2, "key_dim": 8, "value_dim": 8} | changes
    return AttentionCase(**sizes, dtype=torch.float32, shape=AttentionShape(scaling=0.3))


def test_attention_without_a_shape_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_shapes([case()], 600) is not None

    def mixing(*args: Any, **kwargs: Any) -> Tensor:
        query = args[1]
        return query + query.mean(dim=2, keepdim=True)

    monkeypatch.setattr("draftproof.numerics.probes.attend", mixing)
    assert attention_shapes([case()], 600) is None


# -- the whole model ------------------------------------------------------------------------------


def test_the_first_module_that_mixes_rows_is_named() -> None:
    model = tiny_model("llama", num_hidden_layers=3)
    bound = BoundModel(model)
    shapes = calibrate(bound).shapes
    assert shapes is not None
    mixing = model.model.layers[1].post_attention_layernorm.register_forward_hook(
        lambda module, inputs, output: output + output.mean(dim=1, keepdim=True)
    )
    culprit = first_dependent_module(bound, shapes)
    mixing.remove()
    assert culprit == "model.layers.1.post_attention_layernorm (LlamaRMSNorm)"
    assert first_dependent_module(bound, shapes) is None


@pytest.mark.parametrize(
    ("name", "types", "runs"),
    [
        ("llama", None, [0, 1]),
        ("gpt2", None, [0, 1]),
        ("gemma2", ["sliding_attention", "full_attention"] * 3, [0, 1, 2, 3]),
        ("deepseek_v3", None, [0, 1, 2]),  # its first layer has no experts
    ],
)
def test_two_layers_of_each_kind_run(name: str, types: Any, runs: list[int]) -> None:
    changes = {} if types is None else {"layer_types": types}
    model = tiny_model(name, num_hidden_layers=6, **changes)
    before = model(torch.tensor([[1, 2, 3]])).logits
    ran: list[int] = []
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 6)
    for index, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
        attention = next(m for m in layer.modules() if "layer_idx" in vars(m))
        attention.register_forward_hook(lambda *_, index=index: ran.append(10 + index))
    with few_layers(model):
        model(torch.tensor([[1, 2, 3]]))
    assert [n - 10 for n in ran if n >= 10] == runs
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits, before)


# -- what becomes of a verdict --------------------------------------------------------------------


def no_rule(*args: Any) -> None:
    """A machine on which no linear holds."""


def test_exact_is_refused_where_nothing_holds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "row_rule", no_rule)
    with pytest.raises(
        NumericsError, match=r"packed torch.float32 64 x 32 \(model.layers.0.self_at"
    ):
        Pair(tiny_model(), numerics="exact")


def test_auto_runs_fast_where_nothing_holds_and_says_why(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "row_rule", no_rule)
    pair = Pair(tiny_model(), numerics="auto")
    (result,) = pair.generate([[1, 2, 3]], max_new_tokens=2)
    assert result.numerics == pair.describe()["numerics"] == "fast"
    assert "packed torch.float32 64 x 32" in pair.describe()["numerics_reason"]


def test_attention_that_holds_nowhere_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "attention_shapes", lambda *args: None)
    with pytest.raises(NumericsError, match="attention torch.float32 4/2 heads x 8/8"):
        Pair(tiny_model(), numerics="exact")


def test_the_result_says_that_exact_ran(cache: Path) -> None:
    pair = Pair(tiny_model(), numerics="exact")
    (result,) = pair.generate([[1, 2, 3]], max_new_tokens=2)
    assert result.numerics == pair.describe()["numerics"] == "exact"


def probes_run(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    probe = calibration._probe
    monkeypatch.setattr(calibration, "_probe", lambda *args: calls.append(args) or probe(*args))
    return calls


def test_a_verdict_is_kept_and_used_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, calls = BoundModel(tiny_model()), probes_run(monkeypatch)
    first = calibrate(bound)
    assert (calibrate(bound), len(calls)) == (first, 1)
    assert (calibrate(bound, fresh=True), len(calls)) == (first, 2)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"shapes": {"tokens": 4}, "failing": null}'])
def test_a_damaged_verdict_is_reached_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    bound, calls = BoundModel(tiny_model()), probes_run(monkeypatch)
    first = calibrate(bound)
    (file,) = cache.iterdir()
    file.write_text(content)
    assert (calibrate(bound), len(calls)) == (first, 2)
    assert json.loads(file.read_text())["shapes"]["view"] == first.shapes.view


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file" / "folder"))
    assert calibrate(BoundModel(tiny_model())).shapes is not None


def test_a_verdict_belongs_to_a_machine_and_to_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [store.key_of({"products": ["a"]}), store.key_of({"products": ["b"]})]
    monkeypatch.setattr(store, "machine", lambda: {"threads": 99})
    assert len({*keys, store.key_of({"products": ["a"]})}) == 3


THREADS = """
import torch
torch.set_num_threads({threads})
from draftproof.executors.calibration import calibrate
from draftproof.hf import BoundModel
from draftproof.testing import tiny_model
verdict = calibrate(BoundModel(tiny_model("llama", head_dim=64, intermediate_size=1536)))
print(torch.get_num_threads(), verdict.shapes is not None, verdict.failing)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_verdict_is_reached_with_one_and_two_threads(threads: int) -> None:
    code = THREADS.format(threads=threads)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.split() == [str(threads), "True", "None"], run.stderr


def test_a_bound_model_is_copied_and_saved_as_what_it_was(tmp_path: Path) -> None:
    model = tiny_model("llama")
    names = list(model.state_dict())
    BoundModel(model)
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    ids = torch.tensor([[1, 2, 3]])
    for other in (twin, loaded):
        linears = [m for m in other.modules() if isinstance(m, torch.nn.Linear)]
        assert all(type(m) is torch.nn.Linear for m in linears)
        assert list(other.state_dict()) == names == list(model.state_dict())
        assert torch.equal(other(ids).logits, model(ids).logits)
