"""The row-anchored layout against arrays drawn by hand, and against loops over single slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftproof.executors.layout import RowLayout, _indices, split
from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import FAST, Shapes
from draftproof.types import RaggedTokens

CPU = torch.device("cpu")


def ragged(rows: list[int], starts: list[int], counts: list[int]) -> RaggedTokens:
    ids = torch.arange(sum(counts))
    return RaggedTokens(ids=ids, rows=rows, starts=starts, counts=counts, keep=counts)


def drawn(mask: Tensor) -> list[str]:
    """One line per query: `x` where it sees the slot."""
    return ["".join("x" if seen == 0 else "." for seen in line) for line in mask.tolist()]


# -- which rows share an attention call -----------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "counts", "blocks"),
    [
        ([0, 1, 2], [2, 3, 1], [(0, 3, 3)]),
        ([0, 1, 3], [2, 3, 1], [(0, 2, 3), (3, 4, 1)]),  # row 2 is not fed
        ([0, 1, 2], [1, 17, 1], [(0, 1, 1), (1, 2, 17), (2, 3, 1)]),  # a prompt goes alone
        ([0, 1, 2], [16, 16, 17], [(0, 2, 16), (2, 3, 17)]),
        ([5], [4], [(5, 6, 4)]),
    ],
)
def test_neighbouring_narrow_rows_share_a_block(
    rows: list[int], counts: list[int], blocks: list[tuple[int, int, int]]
) -> None:
    found = split(ragged(rows, [0] * len(rows), counts), FAST)
    assert [(block.low, block.high, block.width) for block in found] == blocks
    assert [block.first for block in found] == [
        sum(counts[: sum(len(b.counts) for b in found[:n])]) for n in range(len(found))
    ]


@pytest.mark.parametrize(
    ("start", "count", "view"), [(0, 1, 16), (15, 1, 16), (12, 4, 16), (12, 5, 32), (31, 2, 48)]
)
def test_the_view_covers_the_longest_row_of_a_block(start: int, count: int, view: int) -> None:
    (block,) = split(ragged([0, 1], [3, start], [1, count]), FAST)
    assert block.view == view


# -- where tokens go ------------------------------------------------------------------------------


def test_positions_count_on_from_each_rows_own_length() -> None:
    layout = RowLayout.plan(ragged([0, 2, 5], [7, 0, 31], [2, 4, 1]), FAST)
    assert layout.positions(CPU).tolist() == [7, 8, 0, 1, 2, 3, 31]


def test_queries_of_a_ragged_block() -> None:
    (block,) = split(ragged([0, 1, 2], [0, 0, 0], [2, 3, 1]), FAST)
    gather, scatter = _indices(block)
    assert gather is not None
    assert scatter is not None
    assert gather.reshape(3, 3).tolist() == [[0, 1, 0], [2, 3, 4], [5, 0, 0]]
    assert scatter.tolist() == [0, 1, 3, 4, 5, 6]


def test_a_full_block_needs_no_index() -> None:
    (block,) = split(ragged([0, 1], [4, 9], [2, 2]), FAST)
    assert _indices(block) == (None, None)


@pytest.mark.parametrize("filler", [1, 4])
def test_writes_go_to_pairs_of_row_and_slot_and_nowhere_else(filler: int) -> None:
    """Index tensors used one per dimension would write a Cartesian product instead."""
    rows, starts, counts = [0, 1, 3], [3, 5, 0], [1, 3, 2]
    layout = RowLayout.plan(ragged(rows, starts, counts), Shapes(tokens=filler))
    new = torch.randn(1, 2, layout.total, 4)
    keys, values = torch.zeros(4, 2, 16, 4), torch.zeros(4, 2, 16, 4)
    expected, index = torch.zeros(4, 2, 16, 4), 0
    for row, start, count in zip(rows, starts, counts, strict=True):
        for step in range(count):
            expected[row, :, start + step] = new[0, :, index]
            index += 1
    layout.write(keys, values, new, 2 * new)
    assert torch.equal(keys, expected)
    assert torch.equal(values, 2 * expected)


# -- who sees what --------------------------------------------------------------------------------


def test_a_query_sees_the_slots_up_to_its_position() -> None:
    mask = additive_mask(torch.tensor([[2, 3], [0, 1]]), 5, None, 1, torch.float32)
    assert mask.shape == (2, 1, 2, 5)
    assert drawn(mask[0, 0]) == ["xxx..", "xxxx."]
    assert drawn(mask[1, 0]) == ["x....", "xx..."]


def test_a_window_hides_what_lies_further_back() -> None:
    mask = additive_mask(torch.tensor([[1, 2, 3, 4]]), 5, 2, 1, torch.float32)
    assert drawn(mask[0, 0]) == ["xx...", ".xx..", "..xx.", "...xx"]


def test_query_heads_of_one_key_head_are_further_queries() -> None:
    mask = additive_mask(torch.tensor([[0, 2]]), 3, None, 2, torch.float32, queries=3)
    # two heads of two queries, then two fillers that repeat the last one
    assert drawn(mask[0, 0]) == ["x..", "xxx", "x..", "xxx", "xxx", "xxx"]


@pytest.mark.parametrize("shapes", [FAST, Shapes(tokens=4, view=32, queries=4)])
@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(scaling=0.5),
        AttentionShape(scaling=0.5, window=3),
        AttentionShape(scaling=0.5, softcap=2.0),
        AttentionShape(scaling=0.5, sinks=torch.tensor([0.3, -1.0, 2.0, 0.0])),
    ],
    ids=["plain", "window", "softcap", "sinks"],
)
def test_attention_equals_a_loop_over_tokens(shapes: Shapes, shape: AttentionShape) -> None:
    tokens = ragged([0, 1, 2, 4], [7, 0, 12, 3], [2, 20, 1, 5])
    layout = RowLayout.plan(tokens, shapes)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, layout.total, 8, generator=generator)
    keys, values = (torch.randn(5, 2, 64, 8, generator=generator) for _ in range(2))
    found = layout.attend(shape, query, keys, values)
    assert found.shape == (1, layout.total, 4, 8)
    assert found.is_contiguous()
    index = 0
    for row, start, count in zip(tokens.rows, tokens.starts, tokens.counts, strict=True):
        for position in range(start, start + count):
            expected = one_token(shape, query[0, :, index], keys[row], values[row], position)
            # float32 sums in another order
            torch.testing.assert_close(found[0, index], expected, rtol=1e-5, atol=1e-5)
            index += 1


def one_token(
    shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor, position: int
) -> Tensor:
    """query [heads, D] over one row's keys [kv_heads, slots, D]; nothing is masked, all is cut."""
    first = 0 if shape.window is None else max(0, position - shape.window + 1)
    outputs = []
    for head, vector in enumerate(query):
        kv_head = head // (len(query) // len(keys))
        scores = keys[kv_head, first : position + 1] @ vector * shape.scaling
        if shape.softcap is not None:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        if shape.sinks is not None:
            scores = torch.cat([scores, shape.sinks[head : head + 1]])
        weights = scores.softmax(0)[: position + 1 - first]
        outputs.append(weights @ values[kv_head, first : position + 1])
    return torch.stack(outputs)


def test_no_mask_means_every_slot_is_seen() -> None:
    query, keys = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 6, 4)
    shape = AttentionShape(scaling=1.0)
    open_mask = torch.zeros(1, 1, 3, 6)
    assert torch.equal(
        attend(shape, query, keys, keys, None), attend(shape, query, keys, keys, open_mask)
    )


# -- ragged tokens --------------------------------------------------------------------------------


def test_kept_tokens_are_the_last_of_each_row() -> None:
    tokens = RaggedTokens(
        ids=torch.arange(7), rows=[0, 2, 5], starts=[7, 0, 31], counts=[2, 4, 1], keep=[2, 0, 1]
    )
    assert tokens.kept_indices == [0, 1, 6]


def test_ragged_tokens_refuse_what_does_not_add_up() -> None:
    with pytest.raises(ValueError, match="3 ids for counts that sum to 4"):
        RaggedTokens(ids=torch.arange(3), rows=[0], starts=[0], counts=[4], keep=[4])
    with pytest.raises(ValueError, match="rows must ascend"):
        ragged([2, 1], [0, 0], [1, 1])
