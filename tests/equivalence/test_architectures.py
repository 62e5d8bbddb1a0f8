"""Every architecture: the same token ids as the reference and as transformers' own `generate`."""

from __future__ import annotations

import pytest

from draftproof import Pair, UnsupportedModelError
from draftproof.testing import ARCHITECTURES, Oracle, assert_same_tokens, stock_generate, tiny_model

from .grid import NEW_TOKENS, Subject, full_grid, sample

SUPPORTED = [name for name, row in ARCHITECTURES.items() if row.supported]
OLDER = [name for name, row in ARCHITECTURES.items() if not row.supported]


@pytest.mark.parametrize("name", SUPPORTED)
def test_equals_reference_and_generate(name: str) -> None:
    subject = Subject.of(name)
    assert_varied(subject.oracle)
    expected = subject.oracle.expected(NEW_TOKENS)
    own = [stock_generate(subject.model, prompt, NEW_TOKENS) for prompt in subject.oracle.prompts]
    assert_same_tokens(own, expected, f"{name}, transformers' own generate")
    for configuration in sample(name):
        assert_same_tokens(*configuration.run(subject), f"{name}, {configuration}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPPORTED)
def test_equals_reference_in_the_full_grid(name: str) -> None:
    subject = Subject.of(name)
    for configuration in full_grid():
        assert_same_tokens(*configuration.run(subject), f"{name}, {configuration}")


@pytest.mark.parametrize("name", OLDER or [pytest.param("", marks=pytest.mark.skip("none here"))])
def test_refused_where_this_transformers_does_not_let_attention_be_replaced(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="0 of . layers attend through"):
        Pair(tiny_model(name), numerics="fast")


def assert_varied(oracle: Oracle) -> None:
    """A model that repeats one token would agree with anything."""
    assert len({token for row in oracle.continuations for token in row}) > 20
    assert len({tuple(row[:NEW_TOKENS]) for row in oracle.continuations}) == len(oracle.prompts)
