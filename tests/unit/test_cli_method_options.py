"""`--method-option NAME=VALUE` reaches the method."""

from __future__ import annotations

import pytest

from draftproof.cli.options import method_options
from draftproof.errors import InputError


def test_words_become_keywords() -> None:
    words = ["window-size=32", "sort_by_length=true", "policy=oldest"]
    assert method_options(words) == {
        "window_size": 32,
        "sort_by_length": True,
        "policy": "oldest",
    }
    assert method_options([]) is None


@pytest.mark.parametrize("word", ["window_size", "=32"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(InputError, match="NAME=VALUE"):
        method_options([word])
