"""Which cache slots each token of one ragged forward reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import Shapes, round_up
from draftproof.numerics.stack import FlatRows
from draftproof.types import RaggedTokens

NARROW = 16  # rows that feed at most this many tokens share one attention call


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive cache rows `low .. high` whose tokens go through attention in one call.

    counts 2, 3, 1  ->  width 3        flat index of each query; blanks repeat index 0 and
         a a .                          are dropped from the output
         b b b
         c . .
    """

    low: int
    high: int
    width: int
    view: int
    first: int  # flat index of the block's first token
    starts: tuple[int, ...]  # position of each row's first query
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Tokens of the block."""
        return sum(self.counts)

    @property
    def full(self) -> bool:
        """Whether every row fills the block's width, so that no index is needed."""
        return self.size == self.width * len(self.counts)


def split(tokens: RaggedTokens, shapes: Shapes) -> list[Block]:
    """Cut the rows into blocks: neighbouring narrow rows together, a wide row in pieces."""
    blocks: list[Block] = []
    narrow = min(NARROW, shapes.width)
    index, first = 0, 0
    while index < len(tokens.rows):
        if tokens.counts[index] <= narrow:
            end = _neighbours(tokens, index, narrow)
            blocks.append(_block(tokens, shapes, index, end, first))
        else:
            end = index + 1
            blocks += _pieces(tokens, shapes, index, first)
        first += sum(tokens.counts[index:end])
        index = end
    return blocks


def _neighbours(tokens: RaggedTokens, index: int, narrow: int) -> int:
    """End of the run of narrow rows that starts at `index` and lies together in the cache."""
    end = index + 1
    while (
        end < len(tokens.rows)
        and tokens.rows[end] == tokens.rows[end - 1] + 1
        and tokens.counts[end] <= narrow
    ):
        end += 1
    return end


def _block(tokens: RaggedTokens, shapes: Shapes, begin: int, end: int, first: int) -> Block:
    """The rows begin .. end - 1 in one call."""
    starts, counts = tuple(tokens.starts[begin:end]), tuple(tokens.counts[begin:end])
    longest = max(start + count for start, count in zip(starts, counts, strict=True))
    low, high = tokens.rows[begin], tokens.rows[end - 1] + 1
    return Block(low, high, max(counts), shapes.view_of(longest), first, starts, counts)


def _pieces(tokens: RaggedTokens, shapes: Shapes, index: int, first: int) -> Iterator[Block]:
    """One row in calls of at most `shapes.width` tokens; what a piece cannot see yet it skips."""
    row, total = tokens.rows[index], tokens.counts[index]
    for offset in range(0, total, min(shapes.width, total)):
        count = min(shapes.width, total - offset)
        start = tokens.starts[index] + offset
        view = shapes.view_of(start + count)
        yield Block(row, row + 1, count, view, first + offset, (start,), (count,))


@dataclass(slots=True)
class _Placed:
    """Index tensors of one forward on one device."""

    rows: Tensor  # [N] cache row of each token
    slots: Tensor  # [N] cache slot of each token
    gather: list[Tensor | None] = field(default_factory=list)  # per block, [R * width]
    scatter: list[Tensor | None] = field(default_factory=list)  # per block, [size]


@dataclass(slots=True)
class RowLayout:
    """The row-anchored layout: token t of a row lives in slot t of that row.

    A round writes each row's new tokens at that row's own length. A rejected entry stays behind
    as a stale slot: it lies beyond every later query's position until it is overwritten, so the
    mask `slot <= position` is all that keeps the layout right. Positions, masks and widths are
    derived here from rows, starts and counts; no token id is looked at.
    """

    tokens: RaggedTokens
    shapes: Shapes
    total: int  # N, including the filler tokens at the end
    blocks: list[Block]
    placed: dict[torch.device, _Placed] = field(default_factory=dict)
    masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    @classmethod
    def plan(cls, tokens: RaggedTokens, shapes: Shapes) -> RowLayout:
        """Derive one forward's layout."""
        total = round_up(len(tokens.ids), shapes.tokens)
        return cls(tokens, shapes, total, split(tokens, shapes))

    def positions(self, device: torch.device) -> Tensor:
        """Position of every real token, [N] int64."""
        return self._on(device).slots

    def rows(self, device: torch.device) -> Tensor:
        """Cache row of every real token, [N] int64."""
        return self._on(device).rows

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Store new keys and values, [1, kv_heads, N, D], by (row, slot) pairs."""
        place = self._on(keys.device)
        real = len(place.rows)  # filler tokens are never written
        keys[place.rows, :, place.slots] = key[0, :, :real].transpose(0, 1)
        values[place.rows, :, place.slots] = value[0, :, :real].transpose(0, 1)

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [1, heads, N, D] over the layer's whole cache -> [1, N, heads, D]."""
        flat = query[0].transpose(0, 1)  # [N, heads, D]
        parts = [self._block(index, shape, flat, keys, values) for index in range(len(self.blocks))]
        filler = self.total - sum(block.size for block in self.blocks)
        if filler:
            parts.append(flat.new_zeros(filler, flat.shape[1], values.shape[-1]))
        # some models take a `view` of what attention returns
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous()[None]

    def flat(self, kinds: Sequence[AttentionShape], group: int, dtype: torch.dtype) -> FlatRows:
        """The same as tensors and numbers, for layers that run as one function on the CPU."""
        device = self.tokens.ids.device
        place = self._on(device)
        every = range(len(self.blocks))
        return FlatRows(
            rows=place.rows,
            slots=place.slots,
            real=None,
            pieces=[(b.low, b.high, b.first, b.size, b.width, b.view) for b in self.blocks],
            gather=place.gather,
            scatter=place.scatter,
            masks=[[self._mask(i, kind, group, dtype, device) for i in every] for kind in kinds],
        )

    def _block(
        self, index: int, shape: AttentionShape, flat: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        block, place = self.blocks[index], self._on(keys.device)
        rows, (_, heads, dim) = block.high - block.low, flat.shape
        gather, scatter = place.gather[index], place.scatter[index]
        piece = flat[block.first : block.first + block.size] if gather is None else flat[gather]
        query = piece.reshape(rows, block.width, heads, dim).transpose(1, 2)  # [R, heads, Q, D]
        out = attend(
            shape,
            query,
            keys[block.low : block.high, :, : block.view],
            values[block.low : block.high, :, : block.view],
            self._mask(index, shape, heads // keys.shape[1], flat.dtype, flat.device),
        )
        out = out.transpose(1, 2).reshape(rows * block.width, heads, values.shape[-1])
        return out if scatter is None else out[scatter]

    def _mask(
        self,
        index: int,
        shape: AttentionShape,
        group: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        key = (index, shape.window, group, dtype, device)
        if key not in self.masks:
            block = self.blocks[index]
            start = torch.tensor(block.starts, device=device)[:, None]
            step = torch.arange(block.width, device=device)
            live = step < torch.tensor(block.counts, device=device)[:, None]
            # blank queries look at slot 0 only: they cost nothing and stay finite
            positions = torch.where(live, start + step, 0)
            self.masks[key] = additive_mask(
                positions, block.view, shape.window, group, dtype, self.shapes.queries
            )
        return self.masks[key]

    def _on(self, device: torch.device) -> _Placed:
        if device not in self.placed:
            self.placed[device] = self._place(device)
        return self.placed[device]

    def _place(self, device: torch.device) -> _Placed:
        counts = torch.tensor(self.tokens.counts)
        ends = counts.cumsum(0)
        begins = ends - counts
        rows = torch.tensor(self.tokens.rows).repeat_interleave(counts)
        starts = torch.tensor(self.tokens.starts)
        slots = torch.arange(len(rows)) + (starts - begins).repeat_interleave(counts)
        place = _Placed(rows.to(device), slots.to(device))
        for block in self.blocks:
            gather, scatter = _indices(block)
            place.gather.append(None if gather is None else gather.to(device))
            place.scatter.append(None if scatter is None else scatter.to(device))
        return place


def _indices(block: Block) -> tuple[Tensor | None, Tensor | None]:
    """Flat index of each query slot of a ragged block, and the slots that hold real tokens."""
    if block.full:
        return None, None
    counts = torch.tensor(block.counts)
    begins = block.first + counts.cumsum(0) - counts
    step = torch.arange(block.width)
    live = step < counts[:, None]  # [R, width]
    gather = torch.where(live, begins[:, None] + step, block.first)
    return gather.flatten(), live.flatten().nonzero()[:, 0]
