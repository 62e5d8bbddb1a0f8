"""A rectangular model call: every row's queries stand in the same columns of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from draftproof.hf import BoundModel, SlotCache
from draftproof.numerics.attention import AttentionShape, additive_mask, attend
from draftproof.numerics.shapes import Shapes
from draftproof.numerics.stack import FlatRows
from draftproof.types import RaggedTokens


@dataclass(frozen=True, slots=True)
class _Placed:
    """Index tensors of the tokens that are fed, on one device, each [N]."""

    lines: Tensor  # line of the rectangle
    columns: Tensor  # column among the queries
    rows: Tensor  # cache row
    slots: Tensor  # cache slot


@dataclass(kw_only=True)
class Rectangle:
    """Queries [R, Q] in the last Q of `width` columns; what a row does not feed there is blank.

        slot     0 1 2 3 4 5 6 7
        row a    . a a a a a A A     '.' no content: padding, a hole, or stale
        row b    b b b b b B . .     b's last two queries are blanks: they are computed with the
        queries            ^ ^ ^     others, see one slot, are never written, and are dropped

    rows:       cache rows, ascending
    begins:     slot of each row's first fed token
    counts:     tokens fed per row
    content:    [R, width] bool, what a row may attend to; the fed tokens included
    positions:  [R, Q] int64
    shapes:     how kernel shapes are rounded
    """

    rows: Sequence[int]
    begins: Sequence[int]
    counts: Sequence[int]
    content: Tensor
    positions: Tensor
    shapes: Shapes
    placed: dict[torch.device, _Placed] = field(default_factory=dict)
    masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns in use, the queries included."""
        return self.content.shape[1]

    @property
    def view(self) -> int:
        """Slots that attention reads."""
        return self.shapes.view_of(self.width)

    @property
    def queries(self) -> int:
        """Q, the columns from the first fed token of any row on."""
        return self.width - min(self.begins)

    @cached_property
    def live(self) -> Tensor:
        """Which queries are tokens and not blanks, [R, Q] bool."""
        slots = torch.arange(self.width - self.queries, self.width)
        begins = torch.tensor(self.begins)[:, None]
        return (slots >= begins) & (slots < begins + torch.tensor(self.counts)[:, None])

    def spread(self, flat: Tensor) -> Tensor:
        """Ragged tokens as a rectangle, [N] -> [R, Q]; blanks repeat the first token."""
        rectangle = flat[:1].repeat(len(self.rows), self.queries)
        place = self._on(flat.device)
        rectangle[place.lines, place.columns] = flat
        return rectangle

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Store new keys and values, [R, kv_heads, Q, D], without the blanks."""
        place = self._on(keys.device)
        keys[place.rows, :, place.slots] = key[place.lines, :, place.columns]
        values[place.rows, :, place.slots] = value[place.lines, :, place.columns]

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [R, heads, Q, D] over the layer's whole cache -> [R, Q, heads, D].

        Neighbouring cache rows go through attention together, so that no key is ever copied to be
        read, whichever rows take part.
        """
        mask = self._mask(shape, query.shape[1] // keys.shape[1], query.dtype, query.device)
        parts = [
            attend(
                shape,
                query[lines],
                keys[rows, :, : self.view],
                values[rows, :, : self.view],
                mask[lines],
            )
            for lines, rows in self._runs()
        ]
        # some models take a `view` of what attention returns
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).transpose(1, 2).contiguous()

    def flat(self, kinds: Sequence[AttentionShape], group: int, dtype: torch.dtype) -> FlatRows:
        """The same as tensors and numbers, for layers that run as one function on the CPU."""
        device, queries = self.content.device, self.queries
        place, runs = self._on(device), list(self._runs())
        masks = [self._mask(kind, group, dtype, device) for kind in kinds]
        whole = len(place.rows) == len(self.rows) * queries
        return FlatRows(
            rows=place.rows,
            slots=place.slots,
            real=None if whole else place.lines * queries + place.columns,
            pieces=[
                (
                    rows.start,
                    rows.stop,
                    lines.start * queries,
                    (lines.stop - lines.start) * queries,
                    queries,
                    self.view,
                )
                for lines, rows in runs
            ],
            gather=[None for _ in runs],
            scatter=[None for _ in runs],
            masks=[[mask[lines] for lines, _ in runs] for mask in masks],
        )

    def kept(self, logits: Tensor, keep: Sequence[int]) -> Tensor:
        """Logits of the last columns, [R, C, V] -> those of each row's last `keep`, [N, V]."""
        columns = logits.shape[1]
        first = self.width - columns
        indices = [
            columns * line + slot - first
            for line, (begin, count, last) in enumerate(
                zip(self.begins, self.counts, keep, strict=True)
            )
            for slot in range(begin + count - last, begin + count)
        ]
        flat = logits.flatten(0, 1)
        return flat if len(indices) == len(flat) else flat[indices]

    def first_kept(self, keep: Sequence[int]) -> int:
        """Leftmost column of which any row wants logits, counted among the queries."""
        slots = [
            begin + count - last
            for begin, count, last in zip(self.begins, self.counts, keep, strict=True)
            if last
        ]
        return min(slots, default=self.width) - (self.width - self.queries)

    def _runs(self) -> Iterator[tuple[slice, slice]]:
        """Lines of the rectangle, and the consecutive cache rows that they are."""
        begin = 0
        for end in range(1, len(self.rows) + 1):
            if end == len(self.rows) or self.rows[end] != self.rows[end - 1] + 1:
                low = self.rows[begin]
                yield slice(begin, end), slice(low, low + end - begin)
                begin = end

    def _mask(
        self, shape: AttentionShape, group: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Additive mask, [R, 1, F, view]: content only, nothing after the query's slot."""
        key = (shape.window, group, dtype, device)
        if key not in self.masks:
            content = self.content.to(device)
            first = content.int().argmax(1)[:, None]  # a blank sees one slot: cheap and finite
            own = torch.arange(self.width - self.queries, self.width, device=device)
            slots = torch.where(self.live.to(device), own, first)  # [R, Q]
            rounding = self.shapes.queries
            mask = additive_mask(slots, self.view, shape.window, group, dtype, rounding)
            mask[..., : self.width].masked_fill_(~content[:, None, None], -torch.inf)
            self.masks[key] = mask
        return self.masks[key]

    def _on(self, device: torch.device) -> _Placed:
        if device not in self.placed:
            lines, columns = self.live.nonzero().unbind(1)
            rows = torch.tensor(self.rows)[lines]
            slots = columns + (self.width - self.queries)
            self.placed[device] = _Placed(*(t.to(device) for t in (lines, columns, rows, slots)))
        return self.placed[device]


def score(
    model: BoundModel, cache: SlotCache, rectangle: Rectangle, tokens: RaggedTokens
) -> Tensor:
    """Feed a rectangle and cache it; return the kept tokens' logits, [sum(keep), V]."""
    device = model.device
    first = rectangle.first_kept(tokens.keep)
    cache.layout = rectangle
    logits = model.forward(
        rectangle.spread(tokens.ids),
        rectangle.positions.to(device),
        cache,
        rectangle,
        torch.arange(first, rectangle.queries, device=device),
    )  # [R, Q - first, V]
    return rectangle.kept(logits, tokens.keep)
