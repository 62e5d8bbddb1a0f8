"""Every causal type of the installed transformers is right or refused; none differs or crashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers

from draftproof.testing.every_type import NOT_MADE, OVERRIDES, causal_types, fewer
from draftproof.testing.sweep import examine

TYPES = causal_types()
# What they have of their own: shared keys and values, routers that are linears and are not called
# as linears, experts that get no token, two attentions per layer, a bias in the mask, an encoder.
HANDFUL = {
    "gemma3n_text": "right",
    "phimoe": "right",
    "jetmoe": "right",
    "longcat_flash": "right",
    "diffllama": "refused",
    "doge": "refused",
    "bart": "refused",
    "zamba2": "refused",
}


@pytest.mark.parametrize("name", [name for name in HANDFUL if name in TYPES])
def test_a_handful(name: str) -> None:
    outcome = examine(name)
    assert outcome.kind == HANDFUL[name], outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_every_type(name: str) -> None:
    outcome = examine(name)
    assert outcome.acceptable, outcome.detail


def test_most_types_are_made() -> None:
    assert len(NOT_MADE) < 10 < len(TYPES)
    assert not NOT_MADE.keys() & OVERRIDES.keys()


def test_layers_of_every_kind_are_kept() -> None:
    assert fewer(["a"] * 5 + ["b"]) == ["a", "b", "a", "b"]
    assert fewer([1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4]


def test_the_page_lists_every_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    if f"transformers {transformers.__version__}." not in page:
        pytest.skip("the page is of another release of transformers")
    assert sorted(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)) == TYPES
    assert "a bug" not in page
