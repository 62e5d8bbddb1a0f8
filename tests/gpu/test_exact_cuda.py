"""The exact tier on a CUDA device: it holds to the bit, or it is refused with the operation named.

Nothing is promised on CUDA before it was measured there; `benchmarks/gpu_check.sh` runs this file
and prints the figures. Which of the two branches a test took is in its output (`-rA`).
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from draftproof import NumericsError, Pair
from draftproof.executors.calibration import calibrate
from draftproof.hf import BoundModel
from draftproof.hf.operations import products
from draftproof.reference import reference
from draftproof.testing import assert_same_tokens, random_prompts, tiny_model

from ..equivalence.exact import LENGTHS, NEW_TOKENS, SUBJECTS, WIDTHS, Run, alone, run

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = [name for name in SUBJECTS if name != "llama, odd width"]


@pytest.fixture(autouse=True)
def _full_precision() -> Any:
    """No TF32: float32 on this device is to be float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@functools.cache
def subject(name: str, dtype: torch.dtype, seed: int = 1) -> Any:
    architecture, changes = SUBJECTS[name]
    settings = {"max_position_embeddings": 2048, **WIDTHS, **changes}
    return tiny_model(architecture, seed=seed, **settings).to(DEVICE, dtype)


def operations(model: Any) -> list[str]:
    """All that a refusal may name."""
    bound = BoundModel(model)
    modules = [name for name, _ in model.named_modules() if name]
    return [*products(model), *(case.key for case in bound.attention_cases), *modules, "logits"]


def exact_or_refusal(model: Any) -> Pair | str:
    """The model in the exact tier, or why it is refused."""
    try:
        return Pair(model, numerics="exact")
    except NumericsError as error:
        return str(error)


def batched(pair: Pair, prompts: list[list[int]], size: int, drafted: int, budget: int) -> Run:
    order = list(reversed(range(len(prompts))))
    return run(
        pair,
        prompts,
        order,
        max_new_tokens=NEW_TOKENS,
        max_num_seqs=size,
        num_speculative_tokens=drafted,
        max_num_batched_tokens=budget,
        debug=True,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_exact_holds_bit_for_bit_or_names_the_operation(name: str, dtype: torch.dtype) -> None:
    model = subject(name, dtype)
    plain = exact_or_refusal(model)
    if isinstance(plain, str):
        assert any(operation in plain for operation in operations(model)), plain
        print(f"refused: {plain}")
        return
    prompts = random_prompts(LENGTHS, seed=3)
    expected = alone(plain, prompts, max_new_tokens=NEW_TOKENS)
    assert len({token for ids in expected.ids for token in ids}) > 8, "stuck on a few tokens"
    drafts = ("ngram", subject(name, dtype, seed=2), model)
    sizes = ((8, 4, 512), (3, 8, 37), (5, 1, 100))
    for draft, (size, drafted, budget) in zip(drafts, sizes, strict=True):
        found = batched(Pair(model, draft, numerics="exact"), prompts, size, drafted, budget)
        assert found.differences(expected) == [], (size, drafted, budget)
    print(f"holds: {plain._shapes}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_probes_run_on_the_device(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product and attention that is probed is the device's own."""
    devices = set()
    attend = torch.nn.functional.scaled_dot_product_attention

    def noting(query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        devices.add(query.device.type)
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    verdict = calibrate(BoundModel(subject(NAMES[1], dtype)), fresh=True)
    assert (verdict.shapes is None) == (verdict.failing is not None)
    assert devices <= {DEVICE}
    if verdict.shapes is not None:
        assert devices == {DEVICE}


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral"])
def test_ids_are_those_of_the_reference(name: str, numerics: str) -> None:
    model = tiny_model(name, seed=1).to(DEVICE)
    prompts = random_prompts((3, 40, 1, 17), seed=5)
    expected = [reference(model, prompt, 12) for prompt in prompts]
    refusal = exact_or_refusal(model) if numerics == "exact" else None
    if isinstance(refusal, str):
        pytest.skip(f"refused: {refusal}")
    pair = Pair(model, tiny_model(name, seed=2).to(DEVICE), numerics=numerics)
    options: dict[str, Any] = {"max_new_tokens": 12, "num_speculative_tokens": 4, "debug": True}
    for size in (1, 3, 4):
        results = pair.generate(prompts, max_num_seqs=size, **options)
        assert_same_tokens([result.token_ids for result in results], expected, f"batch {size}")


def test_auto_is_fast_on_a_device_and_says_why() -> None:
    pair = Pair(subject("llama", torch.float32), numerics="auto")
    assert pair.describe()["numerics"] == "fast"
    assert DEVICE in pair.describe()["numerics_reason"]
