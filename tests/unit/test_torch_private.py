"""Private operators of PyTorch: used where they are, replaced and reported where they are not."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import draftproof
from draftproof import InputError, Pair
from draftproof.numerics import torch_private
from draftproof.numerics.torch_private import (
    FEATURES,
    PACKED_LINEAR,
    SCRIPT,
    SHORT_KERNELS,
    TILES,
    WITHOUT,
    Feature,
    has,
    missing,
    pack,
    script,
)
from draftproof.testing import Oracle, assert_same_tokens, tiny_model

PACKAGE = Path(draftproof.__file__).parent


@pytest.fixture(autouse=True)
def _probed_anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(WITHOUT, raising=False)
    torch_private._has.cache_clear()
    yield
    torch_private._has.cache_clear()


def absent(*_: object) -> Any:
    raise AttributeError("'_OpNamespace' object has no attribute")


def takes_other_arguments(weight: torch.Tensor) -> torch.Tensor:
    return weight


def take_away(feature: Feature, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a PyTorch that does not have it."""
    if feature is PACKED_LINEAR:
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", absent)
    elif feature is SHORT_KERNELS:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", absent)
    elif feature is TILES:
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", absent)
    else:
        monkeypatch.setattr(torch.jit, "script" if feature is SCRIPT else "trace", absent)


def test_all_is_there_in_the_release_that_is_tested() -> None:
    assert missing() == []


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_it_the_tokens_are_the_same_and_one_line_says_so(
    feature: Feature,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = Oracle.of(tiny_model("llama", seed=1), (3, 17, 8), tokens=8, seed=5)
    take_away(feature, monkeypatch)
    caplog.set_level(logging.WARNING, logger="draftproof")
    for _ in range(2):
        model = tiny_model("llama", seed=1).to(getattr(torch, dtype))
        pair = Pair(model, "ngram", numerics="fast")
        found = pair.generate(subject.prompts, max_new_tokens=8, num_speculative_tokens=3)
        if dtype == "float32":
            assert_same_tokens([row.token_ids for row in found], subject.expected(8))
        assert [len(row.token_ids) for row in found] == [8] * 3
    missing()  # what this run had no need of is probed now
    lines = [line for line in caplog.messages if feature.lost in line]
    assert len(lines) == 1
    assert feature.uses in lines[0]
    assert missing() == [feature.name]


def test_what_was_measured_with_it_is_not_used_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.numerics.store import key_of

    before = key_of({})
    monkeypatch.setenv(WITHOUT, PACKED_LINEAR.name)
    assert key_of({}) != before


def test_exact_numerics_hold_or_are_refused_without_packed_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = Oracle.of(tiny_model("llama", seed=1), (3, 17, 8), tokens=8, seed=5)
    monkeypatch.setenv(WITHOUT, PACKED_LINEAR.name)
    pair = Pair(subject.model, "ngram", numerics="auto")
    options: dict[str, Any] = {"max_new_tokens": 8, "output_logits": True}
    alone = pair.generate(subject.prompts, max_num_seqs=1, num_speculative_tokens=0, **options)
    both = pair.generate(subject.prompts, max_num_seqs=3, num_speculative_tokens=3, **options)
    assert_same_tokens([row.token_ids for row in both], subject.expected(8))
    if pair.numerics == "exact":
        assert all(torch.equal(a.logits, b.logits) for a, b in zip(alone, both, strict=True))
    else:
        assert "linear torch.float32" in pair.describe()["numerics_reason"]


def test_another_signature_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", takes_other_arguments)
    weight = torch.ones(3, 4)
    assert pack(weight) is weight
    assert "TypeError" in caplog.text


def test_another_result_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def transposed(rows: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.zeros(len(rows), 7)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", transposed)
    assert not has(PACKED_LINEAR)
    assert "does not do what is expected" in caplog.text


def test_a_function_that_is_not_taken_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def keywords(**options: int) -> int:
        return len(options)

    assert script(keywords) is None
    assert f"keywords is not taken by {SCRIPT.uses}" in caplog.text


def test_a_feature_that_there_is_not_cannot_be_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WITHOUT, "tiles, colour")
    with pytest.raises(InputError, match="colour; choose all, or some of packed-linear"):
        has(TILES)


# -- no other file uses what is private


def private_names(text: str) -> list[str]:
    """What a source uses of PyTorch that is private, deprecated, or an operator by its own name."""
    chains = (_chain(node) for node in ast.walk(ast.parse(text)))
    names = {name for name in chains if name.split(".")[0] == "torch"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("torch.")}
    return sorted(name for name in names if _is_private(name))


def _chain(node: ast.AST) -> str:
    """`torch.ops.mkldnn` of the expression that says so; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) and parts else ""


def _is_private(name: str) -> bool:
    parts = name.split(".")[1:]
    ours = parts[:2] == ["ops", "draftproof"]
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return hidden or parts[:1] == ["jit"] or (parts[:1] == ["ops"] and not ours and len(parts) > 1)


def test_no_other_file_uses_what_is_private() -> None:
    found = {
        str(path.relative_to(PACKAGE)): private_names(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert [path for path, names in found.items() if names] == ["numerics/torch_private.py"]


@pytest.mark.parametrize(
    "text",
    [
        "torch.ops.mkldnn._linear_pointwise(x)",
        "ops = torch.ops.mkldnn",
        "torch.jit.script(f)",
        "torch.cpu._is_amx_tile_supported()",
        "from torch._C import thing",
        "from torch.jit import script",
        "import torch._dynamo",
    ],
)
def test_a_private_name_is_caught(text: str) -> None:
    assert private_names(text)


@pytest.mark.parametrize(
    "text", ["torch.ops.draftproof.attention(x)", "torch.__version__", "self._torch._x"]
)
def test_a_public_name_passes(text: str) -> None:
    assert private_names(text) == []
