"""The two invariants complain when they should, and rows move to where they must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof.errors import InvariantError
from draftproof.executors.alignment import (
    Move,
    Realigned,
    check_positions,
    check_rectangle,
    content_mask,
    move_indices,
    positions_of,
)
from draftproof.executors.grouped import GroupedExecutor
from draftproof.executors.padded import PaddedExecutor, known_tokens
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.testing import tiny_model
from draftproof.types import RaggedTokens


@pytest.fixture(scope="module")
def bound() -> BoundModel:
    return BoundModel(tiny_model("llama"))


def feed(*rows: tuple[int, int, int, int]) -> RaggedTokens:
    """Rows given as (row, start, count, keep), with ids that depend on place only."""
    ids = [(7 * row + 3 * (start + i)) % 97 for row, start, count, _ in rows for i in range(count)]
    names, starts, counts, keep = zip(*rows, strict=True)
    return RaggedTokens(ids=torch.tensor(ids), rows=names, starts=starts, counts=counts, keep=keep)


# -- the invariants --------------------------------------------------------------------------------


def test_i1_holds_for_equal_ends_and_names_the_row_that_breaks_it() -> None:
    check_rectangle([0, 3], pads=[2, 0], known=[5, 7], width=7)
    with pytest.raises(InvariantError, match=r"I1, row 3: .*expected 7, found 1 \+ 7"):
        check_rectangle([0, 3], pads=[2, 1], known=[5, 7], width=7)
    with pytest.raises(InvariantError, match=r"I1, row 0: .*found -1 \+ 8"):
        check_rectangle([0], pads=[-1], known=[8], width=7)


def invariant_two(**changes: Any) -> None:
    content = content_mask(pads=[2, 0], lengths=[5, 6])  # width 7, the last three columns fed
    live = torch.tensor([[False, True, True], [True, True, False]])
    given = {"content": content, "positions": positions_of(content)[:, 4:], "live": live}
    check_positions([4, 9], **(given | changes))


def test_i2_holds_for_positions_made_from_the_mask() -> None:
    invariant_two()


def test_i2_names_the_row_its_expected_and_its_found_positions() -> None:
    shifted = torch.tensor([[2, 3, 4], [5, 6, 6]])
    with pytest.raises(InvariantError, match=r"I2, row 9: .*expected \[4, 5\], found \[5, 6\]"):
        invariant_two(positions=shifted)


def test_i2_names_the_row_with_a_hole() -> None:
    holed = content_mask(pads=[2, 0], lengths=[5, 6])
    holed[0, 3] = False
    with pytest.raises(InvariantError, match=r"I2, row 4: .*slots 2..6, found .*\[2, 4, 5, 6\]"):
        invariant_two(content=holed)


# -- moving ----------------------------------------------------------------------------------------


def test_indices_of_moves_pair_rows_with_slots() -> None:
    rows, old, new = move_indices([Move(5, 2, 1, 3), Move(7, 0, 4, 2)])
    assert rows.tolist() == [5, 5, 5, 7, 7]
    assert old.tolist() == [2, 3, 4, 0, 1]
    assert new.tolist() == [1, 2, 3, 4, 5]


def test_drafts_are_not_known_tokens() -> None:
    assert known_tokens(feed((0, 5, 4, 4), (1, 8, 2, 1), (2, 0, 6, 0))) == [6, 10, 6]


def executor(kind: type, bound: BoundModel, **options: Any) -> Any:
    return kind(model=bound, rows=3, capacity=40, spare=4, debug=True, **options)


def test_a_rectangle_scores_and_moves_as_rows_do(bound: BoundModel) -> None:
    """Three rounds in which rows keep different numbers of tokens; logits equal the rows'."""
    padded = executor(PaddedExecutor, bound)
    anchored = RowsExecutor(model=bound, rows=3, capacity=40)
    rounds = [
        (feed((0, 0, 9, 1), (1, 0, 4, 1), (2, 0, 6, 1)), (9, 4, 6)),
        (feed((0, 9, 5, 5), (1, 4, 3, 3), (2, 6, 1, 1)), (10, 7, 7)),
        (feed((0, 10, 2, 2), (2, 7, 5, 5)), (12, 7, 8)),
        (feed((0, 12, 1, 1), (1, 7, 2, 1), (2, 8, 1, 1)), (13, 9, 9)),
    ]
    for tokens, lengths in rounds:
        expected, found = anchored.forward(tokens), padded.forward(tokens)
        # float32: the same sums in another order, on logits of size 1
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        for row, length in enumerate(lengths):
            anchored.truncate(row, length)
            padded.truncate(row, length)
        padded.check()
        padded.poison()
    assert padded.pads == [0, 4, 4]


def test_only_rows_out_of_place_move_and_every_byte_is_counted(bound: BoundModel) -> None:
    padded = executor(PaddedExecutor, bound)
    padded.forward(feed((0, 0, 9, 1), (1, 0, 4, 1)))
    assert padded.pads == [0, 5, 0]
    padded.forward(feed((0, 9, 3, 3), (1, 4, 3, 3)))
    padded.truncate(0, 10)  # keeps one of three; row 1 keeps all
    padded.forward(feed((0, 10, 1, 1), (1, 7, 1, 1)))
    assert padded.pads == [0, 3, 0]
    per_token = sum(layer.bytes_per_token for layer in bound.layers)
    assert padded.realigned == Realigned(forwards=1, of=3, rows=1, tokens=7, bytes=7 * per_token)


def test_realigning_twice_moves_nothing_twice(bound: BoundModel) -> None:
    padded = executor(PaddedExecutor, bound)
    padded.forward(feed((0, 0, 9, 1), (1, 0, 4, 1)))
    padded.truncate(0, 5)
    padded.realign(feed((0, 5, 1, 1), (1, 4, 1, 1)))
    assert padded.realigned.tokens == 4
    padded.realign(feed((0, 5, 1, 1), (1, 4, 1, 1)))
    assert padded.realigned.tokens == 4


def test_a_wrong_delta_is_caught_before_the_model_runs(
    bound: BoundModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard of the debug flag: a padding that is off by one never reaches the model."""
    padded = executor(PaddedExecutor, bound)
    padded.forward(feed((0, 0, 9, 1), (1, 0, 4, 1)))

    def off_by_one(self: PaddedExecutor, tokens: RaggedTokens) -> None:
        self.pads[1] += 1

    monkeypatch.setattr(PaddedExecutor, "realign", off_by_one)
    with pytest.raises(InvariantError, match=r"I1, row 1: .*expected 10, found 6 \+ 5"):
        padded.forward(feed((0, 9, 1, 1), (1, 4, 1, 1)))


def test_padding_beyond_the_allocation_is_caught(bound: BoundModel) -> None:
    padded = executor(PaddedExecutor, bound)
    padded.forward(feed((0, 0, 9, 1)))
    padded.pads[0] = padded.slots - 8
    with pytest.raises(InvariantError, match="row 0: padding expected"):
        padded.check()


# -- the pool --------------------------------------------------------------------------------------


def test_a_pool_moves_the_fewest_tokens(bound: BoundModel) -> None:
    pool = executor(GroupedExecutor, bound)
    pool.forward(feed((0, 0, 9, 1)))
    pool.forward(feed((1, 0, 9, 1)))
    pool.forward(feed((2, 0, 4, 1)))
    assert pool.pads == [0, 0, 0]
    pool.forward(feed((0, 9, 1, 1), (1, 9, 1, 1)))
    assert pool.realigned.tokens == 0
    pool.forward(feed((0, 10, 1, 1), (1, 10, 1, 1), (2, 4, 1, 1)))
    assert pool.realigned.tokens == 4
    assert pool.pads == [0, 0, 6]
    pool.truncate(0, 4)
    pool.forward(feed((0, 4, 1, 1), (2, 5, 1, 1)))  # EqSpec would move both, to 1 and 0
    assert (pool.pads, pool.realigned.tokens) == ([7, 0, 6], 8)


def test_rows_that_end_in_one_column_say_so(bound: BoundModel) -> None:
    pool = executor(GroupedExecutor, bound)
    pool.forward(feed((0, 0, 9, 1), (1, 0, 4, 1)))
    assert [pool.end(0, 10), pool.end(1, 5), pool.end(2, 5)] == [10, 10, -1]
