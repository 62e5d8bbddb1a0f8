"""The allocator of the paged KV cache: no block is lost, or has two owners, whatever is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.errors import InvariantError
from draftproof.executors.openvino.blocks import BlockPool

ROWS, BLOCKS, SIZE = 4, 10, 8

steps = st.lists(
    st.tuples(
        st.sampled_from(["grow", "trim", "release"]),
        st.integers(0, ROWS - 1),
        st.integers(0, BLOCKS * SIZE + SIZE),
    ),
    max_size=60,
)


def pool() -> BlockPool:
    return BlockPool(blocks=BLOCKS, block_size=SIZE, rows=ROWS)


@given(steps)
def test_every_block_has_one_owner_after_every_step(script: list[tuple[str, int, int]]) -> None:
    subject, lengths = pool(), [0] * ROWS
    for what, row, length in script:
        before = [list(table) for table in subject.tables]
        if what == "grow":
            wanted = max(length, lengths[row])
            try:
                subject.grow(row, wanted)
                lengths[row] = wanted
                assert subject.tables[row][: len(before[row])] == before[row]  # content stays
            except InvariantError:
                assert subject.tables == before
                held = sum(len(table) for table in before)
                assert subject.needed(wanted) - len(before[row]) > BLOCKS - held
        else:
            lengths[row] = 0 if what == "release" else min(length, lengths[row])
            subject.trim(row, lengths[row])
            assert subject.tables[row] == before[row][: len(subject.tables[row])]
        subject.check(lengths)
    for row in range(ROWS):
        subject.trim(row, 0)
    assert sorted(subject.free) == list(range(BLOCKS))


@pytest.mark.parametrize(
    ("length", "blocks"), [(0, 0), (1, 1), (SIZE, 1), (SIZE + 1, 2), (3 * SIZE, 3)]
)
def test_a_row_holds_the_blocks_that_its_length_needs(length: int, blocks: int) -> None:
    subject = pool()
    subject.grow(1, length)
    assert len(subject.tables[1]) == blocks == subject.needed(length)


def test_the_lowest_free_block_is_next() -> None:
    subject = pool()
    subject.grow(0, 2 * SIZE)
    subject.grow(1, 2 * SIZE)
    subject.trim(0, SIZE)
    subject.grow(2, 2 * SIZE)
    assert subject.tables == [[0], [2, 3], [1, 4], []]


def test_a_full_pool_refuses_and_stays_as_it_is() -> None:
    subject = pool()
    subject.grow(0, (BLOCKS - 1) * SIZE)
    with pytest.raises(InvariantError, match="row 2: 9 tokens need 2 more blocks of 8, 1 are"):
        subject.grow(2, SIZE + 1)
    subject.check([(BLOCKS - 1) * SIZE, 0, 0, 0])


def test_a_block_with_two_owners_is_caught() -> None:
    subject = pool()
    subject.grow(0, SIZE)
    subject.tables[1].append(0)
    with pytest.raises(InvariantError, match="block 0: held by row 0 and by row 1"):
        subject.check([SIZE, SIZE, 0, 0])


def test_a_block_that_was_taken_back_and_kept_is_caught() -> None:
    subject = pool()
    subject.grow(0, SIZE)
    subject.free.append(0)
    with pytest.raises(InvariantError, match="block 0: held by the free list and by row 0"):
        subject.check([SIZE, 0, 0, 0])


def test_a_lost_block_is_caught() -> None:
    subject = pool()
    subject.grow(0, SIZE)
    subject.tables[0].clear()
    with pytest.raises(InvariantError, match=r"blocks \[0\]: lost"):
        subject.check([0, 0, 0, 0])


def test_a_row_with_a_block_too_many_is_caught() -> None:
    subject = pool()
    subject.grow(0, 2 * SIZE)
    with pytest.raises(InvariantError, match="row 0: 2 blocks for 8 tokens, expected 1"):
        subject.check([SIZE, 0, 0, 0])
