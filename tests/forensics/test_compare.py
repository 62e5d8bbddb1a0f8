"""Exact and partial match, on lists of token ids."""

from __future__ import annotations

import pytest

from draftproof.forensics.compare import (
    Divergence,
    common_prefix,
    compare,
    first_divergence,
    partial_match,
)


@pytest.mark.parametrize(
    ("reference", "found", "prefix"),
    [
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([], [1], 0),
        ([], [], 0),
    ],
)
def test_common_prefix(reference: list[int], found: list[int], prefix: int) -> None:
    assert common_prefix(reference, found) == prefix


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        ([1, 2], [1, 2], None),
        ([], [], None),
        ([1, 2], [1, 3], (1, 2, 3)),
        ([1, 2], [1], (1, 2, None)),
        ([1], [1, 2], (1, None, 2)),
    ],
)
def test_first_divergence(
    reference: list[int], found: list[int], expected: tuple[int, int | None, int | None] | None
) -> None:
    divergence = first_divergence(5, reference, found)
    if expected is None:
        assert divergence is None
    else:
        position, wanted, got = expected
        assert divergence == Divergence(row=5, position=position, expected=wanted, found=got)


def test_partial_match_is_a_share_of_the_reference() -> None:
    assert partial_match([1, 2, 3, 4], [1, 2, 9, 4]) == 0.5
    assert partial_match([1, 2], [1, 2, 3]) == 1.0
    assert partial_match([], []) == 1.0
    assert partial_match([], [1]) == 0.0


def test_compare_averages_rows_and_names_the_differing_ones() -> None:
    found = compare([[1, 2], [1, 2, 3, 4], [7]], [[1, 2], [1, 2, 3, 9], [8]])
    assert (found.rows, found.exact, found.equal) == (3, 1, False)
    assert found.partial == pytest.approx((1 + 0.75 + 0) / 3)
    assert [(d.row, d.position) for d in found.divergences] == [(1, 3), (2, 0)]


def test_a_longer_row_is_not_exact_although_its_partial_match_is_full() -> None:
    found = compare([[1]], [[1, 2]])
    assert (found.partial, found.equal) == (1.0, False)


def test_a_missing_row_is_not_silently_dropped() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare([[1], [2]], [[1]])
