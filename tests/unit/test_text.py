"""Prompts in, text out piece by piece, and whose ids are whose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import InputError, VocabularyError
from draftproof.testing import tiny_tokenizer
from draftproof.text import REPLACEMENT, Detokenizer, decode, encode, require_same_vocabulary

TOKENIZER = tiny_tokenizer([("t", "h"), ("th", "e")])
SIZE = len(TOKENIZER)


# -- text out -------------------------------------------------------------------------------------


def pieces(ids: list[int], sizes: list[int]) -> list[str]:
    writer, start, out = Detokenizer(TOKENIZER), 0, []
    for turn in range(len(ids)):
        new = ids[start : start + sizes[turn % len(sizes)]]
        start += len(new)
        out.append(writer.push(new, final=start == len(ids)))
        if start == len(ids):
            break
    return out


@given(
    string=st.text(st.characters(codec="utf-8"), max_size=25),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
def test_pieces_of_a_text_are_the_text_and_split_no_character(
    string: str, sizes: list[int]
) -> None:
    out = pieces(TOKENIZER(string)["input_ids"], sizes)
    assert "".join(out) == string
    assert REPLACEMENT in string or not any(REPLACEMENT in piece for piece in out)


@given(
    ids=st.lists(st.integers(0, SIZE - 1), max_size=25),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
def test_pieces_of_any_tokens_are_the_decoded_whole(ids: list[int], sizes: list[int]) -> None:
    """Also of bytes that are no characters, and of special tokens between them."""
    assert "".join(pieces(ids, sizes)) == decode(TOKENIZER, ids, skip_special_tokens=True)


def test_a_character_appears_with_its_last_token() -> None:
    writer = Detokenizer(TOKENIZER)
    assert [writer.push([token]) for token in "aé😀".encode()] == ["a", "", "é", "", "", "", "😀"]


def test_an_incomplete_character_at_the_end_is_shown_as_decoded() -> None:
    writer = Detokenizer(TOKENIZER)
    assert writer.push([0xF0]) == ""
    assert writer.push([0x9F], final=True) == REPLACEMENT
    assert Detokenizer(TOKENIZER).push([], final=True) == ""


def test_special_tokens_are_left_out_or_kept() -> None:
    ids = TOKENIZER("a<|stop|>b")["input_ids"]
    assert decode(TOKENIZER, ids, skip_special_tokens=True) == "ab"
    assert decode(TOKENIZER, ids, skip_special_tokens=False) == "a<|stop|>b"


# -- prompts in -----------------------------------------------------------------------------------


def test_strings_ids_tensors_and_chats() -> None:
    assert encode(TOKENIZER, "hi", SIZE) == [104, 105]
    assert encode(TOKENIZER, (104, 105), SIZE) == [104, 105]
    assert encode(None, torch.tensor([104, 105]), SIZE) == [104, 105]  # type: ignore[arg-type]
    chat = encode(TOKENIZER, [{"role": "user", "content": "hi"}], SIZE)
    assert TOKENIZER.decode(chat) == "<|start|>user\nhi<|stop|><|start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "no tokens"),
        ([], "no tokens"),
        ([3, -1], "token id -1 at position 1 is outside the vocabulary"),
        ([3, SIZE], f"token id {SIZE} at position 1"),
        ([3, 4.0], "position 1 holds 4.0"),
        ([True], "position 0 holds True"),
        (["a"], "position 0 holds 'a'"),
    ],
)
def test_what_cannot_be_decoded_from_is_refused(prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encode(TOKENIZER, prompt, SIZE)


@pytest.mark.parametrize("prompt", ["hi", [{"role": "user", "content": "hi"}]])
def test_text_needs_a_tokenizer(prompt: Any) -> None:
    with pytest.raises(InputError, match="needs a tokenizer"):
        encode(None, prompt, SIZE)


def test_a_chat_needs_a_template() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        encode(bare, [{"role": "user", "content": "hi"}], SIZE)


# -- vocabularies ---------------------------------------------------------------------------------


class Vocabulary:
    def __init__(self, tokens: dict[str, int]) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return self.tokens


def vocabulary(count: int, **changed: int) -> Vocabulary:
    return Vocabulary({f"t{i}": i for i in range(count)} | changed)


def test_the_same_tokens_with_some_added_pass() -> None:
    require_same_vocabulary(vocabulary(100), vocabulary(100))
    require_same_vocabulary(vocabulary(100), vocabulary(95))
    require_same_vocabulary(vocabulary(95), vocabulary(100))


def test_one_token_with_another_id_is_named() -> None:
    with pytest.raises(VocabularyError, match="'t7' is 7 in the target and 99 in the draft"):
        require_same_vocabulary(vocabulary(99), vocabulary(99, t7=99))


def test_too_little_in_common_is_refused() -> None:
    with pytest.raises(VocabularyError, match="100 and 80 tokens, 80 in common"):
        require_same_vocabulary(vocabulary(100), vocabulary(80))
