"""Each rounding of the exact tier switched off: wherever the calibration asked for it, it shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof.executors.calibration import first_dependent_module
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.hf.operations import products
from draftproof.numerics.linear import in_pieces
from draftproof.numerics.probes import attention_holds, cancelling
from draftproof.numerics.shapes import NEVER, SIZES, Shapes
from draftproof.testing import random_prompts
from draftproof.types import RaggedTokens

from .exact import prefill, shapes_of, subject, without

HEADS_OF_64 = "llama, heads of 64, tied"
STEPS = 12
# where every control was seen to show; with AVX2 kernels some do not, in these few logits
WIDE_VECTORS = "AVX512" in torch.backends.cpu.get_cpu_capability()


def step_by_step(name: str, tokens: list[int], shapes: Shapes, start: int) -> torch.Tensor:
    """Logits [STEPS, V]: the first `start` tokens at once, then one at a time."""
    bound = BoundModel(subject(name, torch.float32))
    executor = RowsExecutor(model=bound, rows=1, capacity=len(tokens), shapes=shapes)
    begins = [0, *range(start, start + STEPS)]
    ends = [start, *range(start + 1, start + STEPS + 1)]
    logits = [
        executor.forward(
            RaggedTokens(
                ids=torch.tensor(tokens[a:b]), rows=[0], starts=[a], counts=[b - a], keep=[1]
            )
        )
        for a, b in zip(begins, ends, strict=True)
    ]
    return torch.cat(logits[1:])


def differs(name: str, shapes: Shapes, length: int, start: int) -> bool:
    """Whether steps of one token give other logits than one forward over all `length` tokens."""
    (tokens,) = random_prompts((length,), seed=9)
    whole = prefill(name, torch.float32, tokens, shapes)[start : start + STEPS]
    return not torch.equal(step_by_step(name, tokens, shapes, start), whole)


def needs(name: str, field: str, trivial: Any) -> Shapes:
    """The calibrated shapes; skips where this machine needs no rounding of that kind."""
    shapes = shapes_of(name, torch.float32)
    if getattr(shapes, field) == trivial:
        pytest.skip(f"on this machine {field} need not be rounded")
    return shapes


def test_nothing_differs_with_every_rounding_on() -> None:
    shapes = shapes_of(HEADS_OF_64, torch.float32)
    assert not any(differs(HEADS_OF_64, shapes, n, n // 2) for n in (24, 300, 600, 1424, 2000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [HEADS_OF_64, "llama, real width"])
def test_row_counts(name: str, dtype: torch.dtype) -> None:
    shapes = shapes_of(name, dtype)
    bound = BoundModel(subject(name, dtype))
    found = products(bound.model)
    minding = {k: p for k, p in found.items() if len(shapes.rows_of(k).sizes) < len(SIZES)}
    if not minding:
        pytest.skip("on this machine the products of these sizes mind no row count")
    for kind, product in minding.items():
        rows, weight = cancelling(product.in_features, product.out_features, product.dtype)
        assert product.run is not None
        run, rule = product.run(weight), shapes.rows_of(kind)
        whole = in_pieces(run, rows, rule)
        counts = [*range(1, 64), 100, 200]
        assert all(torch.equal(in_pieces(run, rows[:n], rule), whole[:n]) for n in counts)
        assert not all(torch.equal(run(rows[:n]), whole[:n]) for n in counts)


def kernels_show(name: str, shapes: Shapes) -> bool:
    """Whether the attention by itself gives other bits under these shapes."""
    cases = BoundModel(subject(name, torch.float32)).attention_cases
    holds = attention_holds(cases, shapes_of(name, torch.float32), 600)
    assert holds or not WIDE_VECTORS
    if not holds:
        pytest.skip("on this machine no shape passes the sharper probe")
    return not attention_holds(cases, shapes, 600)


def test_query_counts() -> None:
    shapes = needs(HEADS_OF_64, "queries", 1)
    assert kernels_show(HEADS_OF_64, without(shapes, queries=1))


def test_views() -> None:
    shapes = needs(HEADS_OF_64, "view", 1)
    assert differs(HEADS_OF_64, without(shapes, view=1, barred=()), 24, 12)


def test_barred_views() -> None:
    shapes = needs(HEADS_OF_64, "barred", ())
    assert kernels_show(HEADS_OF_64, without(shapes, barred=()))


def test_views_of_long_rows() -> None:
    shapes = needs(HEADS_OF_64, "long_view", NEVER)
    # the kernel's third block of keys: 400 of them for the whole row, about 256 for the steps
    shown = differs(HEADS_OF_64, without(shapes, long_view=NEVER), 1424, 1274)
    assert shown or not WIDE_VECTORS
    if not shown:
        pytest.skip("on this machine these lengths show nothing in these logits")


@pytest.mark.parametrize("name", ["mixtral, experts", "qwen3_moe, experts"])
def test_rows_of_experts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = needs(name, "products", {})
    assert not differs(name, shapes, 80, 12)
    monkeypatch.setattr("draftproof.hf.kernels.fill_rows", lambda rows, count: rows)
    monkeypatch.setattr("draftproof.hf.kernels.in_pieces", lambda run, rows, rule: run(rows))
    shown = differs(name, shapes, 80, 12)
    assert shown or not WIDE_VECTORS
    if not shown:
        pytest.skip("on this machine the rows of these experts show nothing in these logits")
    culprit = first_dependent_module(BoundModel(subject(name, torch.float32)), shapes)
    assert culprit is not None
    assert "expert" in culprit.lower() or "mlp" in culprit
