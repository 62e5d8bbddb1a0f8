"""Where one row's offered tokens are cut, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.batch import Request, Row
from draftproof.engine.stopping import Cut, cut
from draftproof.sampling import Settings
from draftproof.testing import tiny_tokenizer
from draftproof.types import FinishReason

EOS, STOP, LENGTH = FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH
ROOM = 1000
TOKENIZER = tiny_tokenizer()


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids))


def row(emitted: list[int], **settings: Any) -> Row:
    asked = Settings(**{"max_new_tokens": 50, **settings})
    request = Request(index=0, prompt=[1, 2], settings=asked)
    return Row(slot=0, request=request, tokens=[1, 2, *emitted])


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ([5, 6, 7], Cut(3, None)),
        ([5, 9, 7], Cut(2, EOS)),
        ([9], Cut(1, EOS)),
        ([5, 8, 9], Cut(2, EOS)),  # any of several ids
    ],
)
def test_eos_is_kept_and_what_follows_is_not(offered: list[int], expected: Cut) -> None:
    assert cut(row([], eos_token_id=(8, 9)), offered, None, ROOM) == expected


@pytest.mark.parametrize(
    ("least", "expected"), [(0, Cut(1, EOS)), (3, Cut(1, EOS)), (4, Cut(3, EOS)), (6, Cut(4, None))]
)
def test_an_early_eos_does_not_end_the_row(least: int, expected: Cut) -> None:
    grown = row([5, 5], eos_token_id=(9,), min_new_tokens=least)
    assert cut(grown, [9, 5, 9, 5], None, ROOM) == expected


@pytest.mark.parametrize(
    ("budget", "room", "expected"),
    [
        (5, ROOM, Cut(3, None)),
        (3, ROOM, Cut(3, LENGTH)),
        (2, ROOM, Cut(2, LENGTH)),
        (5, 2, Cut(2, LENGTH)),
        (0, ROOM, Cut(0, LENGTH)),
        (5, 0, Cut(0, LENGTH)),
    ],
)
def test_length_by_request_and_by_room(budget: int, room: int, expected: Cut) -> None:
    assert cut(row([], max_new_tokens=budget), [5, 6, 7], None, room) == expected


def test_an_eos_at_the_last_place_of_the_budget_is_the_reason() -> None:
    assert cut(row([], max_new_tokens=2, eos_token_id=(6,)), [5, 6, 7], None, ROOM) == Cut(2, EOS)


def text(string: str) -> list[int]:
    return list(string.encode())


@pytest.mark.parametrize(
    ("emitted", "offered", "stops", "expected"),
    [
        ("", "hello", ("lo",), Cut(5, STOP)),
        ("hel", "lo you", ("lo",), Cut(2, STOP)),  # began in an earlier round
        ("", "abcabc", ("c", "b"), Cut(2, STOP)),  # the earliest of several
        ("stop", "ping", ("stop",), Cut(4, None)),  # was complete before
        ("", "né e", ("é",), Cut(3, STOP)),  # a character of two bytes
        ("n\N{GRINNING FACE}", "ab", ("b",), Cut(2, STOP)),
        ("", "abc", ("xyz",), Cut(3, None)),
    ],
)
def test_stop_strings(emitted: str, offered: str, stops: tuple[str, ...], expected: Cut) -> None:
    grown = row(text(emitted), stop_strings=stops)
    assert cut(grown, text(offered), decode, ROOM) == expected


def test_a_stop_string_waits_for_the_least_length() -> None:
    grown = row([], stop_strings=("ab",), min_new_tokens=4)
    assert cut(grown, text("abxab"), decode, ROOM) == Cut(5, STOP)


@given(
    written=st.text(st.sampled_from("abé \N{GRINNING FACE}"), max_size=30),
    stop=st.text(st.sampled_from("abé \N{GRINNING FACE}"), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
def test_a_stop_string_is_found_at_the_same_token_however_rounds_divide_the_text(
    written: str, stop: str, sizes: list[int]
) -> None:
    ids = text(written)
    ends = (n for n in range(1, len(ids) + 1) if stop in decode(ids[:n]))
    expected = next(ends, None)
    grown, start, found = row([], max_new_tokens=500, stop_strings=(stop,)), 0, None
    for turn in range(len(ids)):
        offered = ids[start : start + sizes[turn % len(sizes)]]
        decision = cut(grown, offered, decode, ROOM)
        if decision.reason is not None:
            found = start + decision.count
            break
        grown.tokens += offered
        start += len(offered)
    assert found == expected
