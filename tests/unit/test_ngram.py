"""Prompt lookup: the longest match, its latest occurrence, and an index that only grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.batch import Request, Row
from draftproof.drafters import NgramDrafter
from draftproof.errors import InputError


def row(tokens: list[int], slot: int = 0) -> Row:
    return Row(slot=slot, request=Request(index=slot, prompt=[0]), tokens=tokens)


def proposed(tokens: list[int], count: int = 3, **options: int) -> list[int]:
    drafts = NgramDrafter(**options).propose([row(tokens)], [count])
    return drafts.ids[0, : drafts.counts[0]].tolist()


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1]),
        ([1, 2, 9, 8, 2, 7, 1, 2], [9, 8, 2]),  # the pair 1 2 before the later single 2
        ([1, 5, 6, 1, 7, 8, 1], [7, 8, 1]),  # the latest of two
        ([4, 4, 4, 4], [4]),  # a match may overlap the end; there is no more to copy
        ([1, 2, 3, 4], []),
        ([1], []),
    ],
)
def test_what_followed_the_last_occurrence(tokens: list[int], drafts: list[int]) -> None:
    assert proposed(tokens) == drafts


def test_no_more_than_wanted_and_nothing_for_nothing() -> None:
    assert proposed([1, 2, 3, 4, 5, 1], count=2) == [2, 3]
    assert proposed([1, 2, 3, 4, 5, 1], count=0) == []


def test_shorter_matches_than_the_least_do_not_count() -> None:
    assert proposed([1, 2, 3, 9, 1], prompt_lookup_min=2) == []
    assert proposed([1, 2, 3, 9, 1, 2], prompt_lookup_min=2) == [3, 9, 1]


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (1, 0)])
def test_impossible_sizes_are_refused(low: int, high: int) -> None:
    with pytest.raises(InputError, match="prompt_lookup_min <= prompt_lookup_max"):
        NgramDrafter(prompt_lookup_min=low, prompt_lookup_max=high)


def test_rows_have_their_own_index_and_are_padded_with_minus_one() -> None:
    drafter = NgramDrafter()
    rows = [row([1, 2, 3, 1], slot=0), row([5, 6, 7, 8], slot=1), row([9, 9, 4, 9], slot=2)]
    drafts = drafter.propose(rows, [3, 3, 1])
    assert list(drafts.counts) == [3, 0, 1]
    assert drafts.ids.tolist() == [[2, 3, 1], [-1, -1, -1], [4, -1, -1]]


def test_a_released_row_leaves_nothing_to_the_next_one() -> None:
    drafter = NgramDrafter()
    old, new = row([1, 2, 3, 1]), row([7, 8, 9, 1])
    assert list(drafter.propose([old], [3]).counts) == [3]
    drafter.release(old)
    assert list(drafter.propose([new], [3]).counts) == [0]


def brute_force(tokens: list[int], count: int, low: int, high: int) -> list[int]:
    for size in range(min(high, len(tokens)), low - 1, -1):
        gram = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == gram:
                return tokens[end : end + count]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), max_size=5),
    low=st.integers(1, 2),
    extra=st.integers(0, 3),
)
def test_growing_in_steps_equals_searching_from_scratch(
    tokens: list[int], cuts: list[int], low: int, extra: int
) -> None:
    drafter = NgramDrafter(prompt_lookup_min=low, prompt_lookup_max=low + extra)
    for length in sorted({*(c for c in cuts if c < len(tokens)), len(tokens)}):
        drafts = drafter.propose([row(tokens[:length])], [4])
        found = drafts.ids[0, : drafts.counts[0]].tolist()
        assert found == brute_force(tokens[:length], 4, low, low + extra)
