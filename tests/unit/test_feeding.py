"""What a graph is given: as it is, or widened, filled up and cut. Runs without OpenVINO."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.executors.openvino.feeding import FORWARD, Feed, feeds
from draftproof.numerics.shapes import FAST, Rows, Shapes
from draftproof.types import RaggedTokens

EXACT = Shapes(products={FORWARD: Rows((2, 3, 4, 8, 16))}, least=2)
FILLER = 9


def ragged(*parts: tuple[int, list[int], list[int], int]) -> tuple[RaggedTokens, list[list[int]]]:
    """row, cached ids, new ids, kept -> tokens, and what every row has cached."""
    known: list[list[int]] = [[] for _ in range(FILLER)]
    for row, cached, _, _ in parts:
        known[row] = cached
    tokens = RaggedTokens(
        ids=torch.tensor([token for _, _, new, _ in parts for token in new]),
        rows=[row for row, _, _, _ in parts],
        starts=[len(cached) for _, cached, _, _ in parts],
        counts=[len(new) for _, _, new, _ in parts],
        keep=[keep for *_, keep in parts],
    )
    return tokens, known


def told(feed: Feed) -> list[tuple[int, int, list[int]]]:
    """Row, start and ids of every piece."""
    found, position = [], 0
    for row, start, count in zip(feed.rows, feed.starts, feed.counts, strict=True):
        found.append((row, start, feed.ids[position : position + count].tolist()))
        position += count
    return found


def test_without_rules_tokens_go_as_they_are() -> None:
    tokens, known = ragged((0, [1], [2], 1), (3, [], [4, 5, 6], 0))
    (feed,) = feeds(tokens, known, FAST, FILLER)
    assert told(feed) == [(0, 1, [2]), (3, 0, [4, 5, 6])]
    assert (list(feed.kept), feed.wanted) == ([0], 1)


def test_a_single_token_brings_the_cached_one_before_it() -> None:
    tokens, known = ragged((0, [7, 8], [9], 1), (2, [1], [2, 3], 2))
    (feed,) = feeds(tokens, known, EXACT, FILLER)
    assert told(feed) == [(0, 1, [8, 9]), (2, 1, [2, 3])]
    assert (list(feed.kept), feed.wanted) == ([1, 2, 3], 3)


def test_a_row_of_one_token_brings_itself() -> None:
    tokens, known = ragged((1, [], [5], 1))
    (feed,) = feeds(tokens, known, EXACT, FILLER)
    assert told(feed) == [(1, 0, [5, 5])]
    # two logits are the fewest that the rule allows; one is wanted
    assert (list(feed.kept), feed.wanted) == ([0, 0], 1)


def test_calls_and_logits_are_filled_up() -> None:
    tokens, known = ragged((0, [], [1, 2, 3, 4, 5], 5))
    (feed,) = feeds(tokens, known, EXACT, FILLER)
    assert told(feed) == [(0, 0, [1, 2, 3, 4, 5]), (FILLER, 0, [0, 0, 0])]
    assert (list(feed.kept), feed.wanted) == ([0, 1, 2, 3, 4, 4, 4, 4], 5)


@pytest.mark.parametrize("length", [16, 17, 18, 31, 32, 33, 50])
def test_no_piece_of_a_cut_row_is_a_single_token(length: int) -> None:
    tokens, known = ragged((0, [], list(range(length)), 3))
    calls = list(feeds(tokens, known, EXACT, FILLER))
    pieces = [piece for feed in calls for piece in told(feed) if piece[0] != FILLER]
    assert [token for _, _, ids in pieces for token in ids] == list(range(length))
    assert min(len(ids) for _, _, ids in pieces) >= 2
    assert all(sum(feed.counts) in EXACT.rows_of(FORWARD).sizes for feed in calls)
    assert sum(feed.wanted for feed in calls) == 3


def test_every_wanted_logit_is_computed_once_and_in_order() -> None:
    draw = random.Random(3)
    for _ in range(300):
        parts = []
        for row in sorted(draw.sample(range(FILLER), draw.randint(1, 5))):
            cached = [draw.randrange(100) for _ in range(draw.choice([0, 1, 5]))]
            new = [draw.randrange(100, 999) for _ in range(draw.choice([1, 2, 3, 9, 40]))]
            parts.append((row, cached, new, draw.randint(0, len(new))))
        tokens, known = ragged(*parts)
        found = []
        for feed in feeds(tokens, known, EXACT, FILLER):
            places = [
                (row, start + step) for row, start, ids in told(feed) for step in range(len(ids))
            ]
            found += [places[index] for index in list(feed.kept)[: feed.wanted]]
            assert sum(feed.counts) in EXACT.rows_of(FORWARD).sizes
            assert len(feed.kept) in EXACT.rows_of(FORWARD).sizes
        expected = [
            (row, len(cached) + len(new) - keep + step)
            for row, cached, new, keep in parts
            for step in range(keep)
        ]
        assert found == expected
