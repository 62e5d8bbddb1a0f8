"""Words that must not appear, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.schema.faults import RequestError


def bad_word_ids(words: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of each word as it stands at the beginning of a text and after a space.

    As in vLLM: the second form counts where it is other tokens of the same number.
    """
    if tokenizer is None:
        raise RequestError("bad_words: needs a tokenizer", param="bad_words")
    found: list[list[int]] = []
    for word in words:
        bare, spaced = (_encode(tokenizer, prefix + word.lstrip()) for prefix in ("", " "))
        if not bare:
            raise RequestError(f"bad_words: {word!r} has no tokens", param="bad_words")
        found.append(bare)
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(spaced)
    return found


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
