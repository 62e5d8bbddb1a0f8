"""Faults of positions, masks and the KV cache: a model wrapper doctors each forward's layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from draftproof.engine.engine import Engine
from draftproof.executors.layout import RowLayout
from draftproof.executors.rows import RowsExecutor
from draftproof.forensics.subjects.base import Inquiry
from draftproof.hf import BoundModel
from draftproof.types import RaggedTokens

AnyLayout = TypeVar("AnyLayout", bound=RowLayout)
Doctor = Callable[[Tensor, RowLayout], tuple[Tensor, RowLayout]]


@dataclass
class DoctoredModel:
    """A bound model that sees the positions and the layout a fault makes of the right ones."""

    inner: BoundModel
    doctor: Doctor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(
        self, ids: Tensor, positions: Tensor, cache: Any, layout: RowLayout, keep: Tensor
    ) -> Tensor:
        """As BoundModel.forward: ids, positions [N] -> logits [len(keep), V]."""
        positions, cache.layout = self.doctor(positions, layout)
        return self.inner.forward(ids, positions, cache, cache.layout, keep)


def doctored(executor: Any, doctor: Doctor) -> None:
    """Put a doctor between a row-anchored executor and its model."""
    if not isinstance(executor, RowsExecutor):
        raise TypeError(f"faults of the layout need the rows executor, not {type(executor)}")
    executor.model = DoctoredModel(executor.model, doctor)  # type: ignore[assignment]


def per_token(values: Sequence[int], positions: Tensor, layout: RowLayout) -> Tensor:
    """One value per row -> one per fed token, [N]; filler tokens get 0."""
    counts = torch.tensor(layout.tokens.counts)
    spread = torch.tensor(list(values)).repeat_interleave(counts)
    filler = torch.zeros(len(positions) - len(spread), dtype=spread.dtype)
    return torch.cat([spread, filler]).to(positions.device)


def shifting(shift: Callable[[RaggedTokens], list[int]]) -> Callable[[Engine, Inquiry], Engine]:
    """A fault that adds to the positions of each row, told what is fed."""

    def doctor(positions: Tensor, layout: RowLayout) -> tuple[Tensor, RowLayout]:
        moved = positions + per_token(shift(layout.tokens), positions, layout)
        return moved.clamp(min=0), layout

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        doctored(engine.target, doctor)
        return engine

    return rig


def plus_one(tokens: RaggedTokens) -> list[int]:
    """Everything after the prompt sits one position too far."""
    return [int(start > 0) for start in tokens.starts]


def padded_width(tokens: RaggedTokens) -> list[int]:
    """Decoding rows count from the width of the batch, not from their own length."""
    return [max(tokens.starts) - start if start > 0 else 0 for start in tokens.starts]


def neighbours_length(tokens: RaggedTokens) -> list[int]:
    """Decoding rows count from the length of the row beside them."""
    beside = [*tokens.starts[1:], tokens.starts[0]]
    pairs = zip(tokens.starts, beside, strict=True)
    return [other - own if own > 0 and other > 0 else 0 for own, other in pairs]


# -- masks -----------------------------------------------------------------------------------------


def first_row(layout: RowLayout, index: int) -> int:
    """Place of a block's first row among the forward's rows; a block knows its cache row only."""
    return layout.tokens.rows.index(layout.blocks[index].low)


class PaddingVisible(RowLayout):
    """Rows see the slots beyond their end, as far as the longest row of the batch reaches."""

    def _mask(self, index: int, shape: Any, group: int, dtype: Any, device: Any) -> Tensor:
        mask = super()._mask(index, shape, group, dtype, device).clone()  # [R, 1, group * Q, view]
        first, counts = first_row(self, index), self.blocks[index].counts
        tokens = self.tokens
        longest = max(tokens.starts) + 1 if min(tokens.starts) > 0 else 0
        for row in range(len(counts)):
            end = tokens.starts[first + row] + counts[row]
            mask[row, :, :, end:longest] = 0
        return mask


class WindowForgotten(RowLayout):
    """A scored block is masked as if the layer had no sliding window."""

    def _mask(self, index: int, shape: Any, group: int, dtype: Any, device: Any) -> Tensor:
        if self.tokens.starts[first_row(self, index)] > 0 and max(self.blocks[index].counts) > 1:
            shape = replace(shape, window=None)
        return super()._mask(index, shape, group, dtype, device)


def recast(layout: RowLayout, cls: type[AnyLayout], **more: Any) -> AnyLayout:
    """The same plan in another class; what is derived from it is derived anew."""
    given = [f.name for f in fields(layout) if f.default is f.default_factory is MISSING]
    return cls(**{name: getattr(layout, name) for name in given}, **more)


def laid_out(cls: type[RowLayout]) -> Callable[[Engine, Inquiry], Engine]:
    """A fault that is another class of layout."""

    def doctor(positions: Tensor, layout: RowLayout) -> tuple[Tensor, RowLayout]:
        return positions, recast(layout, cls)

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        doctored(engine.target, doctor)
        return engine

    return rig


@dataclass
class PadByIdentity:
    """The mask is inferred from `token == pad`, and pad is eos: the prompt's own eos is hidden."""

    pads: tuple[int, ...]
    hidden: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def __call__(self, positions: Tensor, layout: RowLayout) -> tuple[Tensor, RowLayout]:
        tokens, flat = layout.tokens, layout.tokens.ids.tolist()
        at = 0
        for row, start, count in zip(tokens.rows, tokens.starts, tokens.counts, strict=True):
            if start == 0:
                self.hidden[row] = {n for n in range(count) if flat[at + n] in self.pads}
            at += count
        return positions, recast(layout, HiddenSlots, hidden=dict(self.hidden))


@dataclass
class HiddenSlots(RowLayout):
    """A layout that hides given slots of given rows from every later query."""

    hidden: dict[int, set[int]] = field(default_factory=dict)

    def _mask(self, index: int, shape: Any, group: int, dtype: Any, device: Any) -> Tensor:
        mask = super()._mask(index, shape, group, dtype, device).clone()
        first = first_row(self, index)
        for row in range(len(self.blocks[index].counts)):
            for slot in self.hidden.get(self.tokens.rows[first + row], ()):
                if slot < self.tokens.starts[first + row]:
                    mask[row, :, :, slot] = -torch.inf
        return mask


def pad_is_eos(engine: Engine, inquiry: Inquiry) -> Engine:
    """See PadByIdentity."""
    doctored(engine.target, PadByIdentity(inquiry.eos_token_id or ()))
    return engine


# -- rollback --------------------------------------------------------------------------------------


@dataclass
class Rollback:
    """An executor whose rows slide along the cache when tokens are taken back.

        tokens     t t t t|x x        two rejected drafts
        right      t t t t            the next token takes the first x's slot
        holes 2    t t t t x x n n    both stay, and everything after them attends to them
        holes -1   t t t n            one too many went: the last good entry is overwritten

    holes:  slots by which the row's next token sits beyond its place, told how many were rejected
    zero:   whether rejected entries are zeroed, which leaves them the softmax weight exp(0)
    """

    inner: RowsExecutor
    holes: Callable[[int], int]
    zero: bool = False
    slid: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        roomy = RowsExecutor(  # with slots for all that is never taken back
            model=self.inner.model,
            rows=self.inner.rows,
            capacity=self.inner.capacity * 8,
            shapes=self.inner.shapes,
        )
        self.inner.cache = roomy.cache
        doctored(self.inner, self._doctor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _doctor(self, positions: Tensor, layout: RowLayout) -> tuple[Tensor, RowLayout]:
        tokens = layout.tokens
        starts = [
            max(0, s + self.slid[row]) for row, s in zip(tokens.rows, tokens.starts, strict=True)
        ]
        return positions, RowLayout.plan(replace(tokens, starts=starts), self.inner.shapes)

    def truncate(self, row: int, length: int) -> None:
        """Take back as the fault does."""
        rejected = self.inner.lengths[row] - length
        if rejected > 0:
            if self.zero:
                self._erase(row, length, rejected)
            self.slid[row] += self.holes(rejected)
        self.inner.truncate(row, length)

    def _erase(self, row: int, length: int, rejected: int) -> None:
        first = length + self.slid[row]
        for tensor in (*self.inner.cache.keys, *self.inner.cache.values):
            tensor[row, :, first : first + rejected] = 0

    def release(self, row: int) -> None:
        """Forget the row and its holes."""
        self.slid.pop(row, None)
        self.inner.release(row)


def rolling_back(
    holes: Callable[[int], int], *, zero: bool = False
) -> Callable[[Engine, Inquiry], Engine]:
    """A fault of the target's rollback."""

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        inner: Any = engine.target
        engine.target = Rollback(inner, holes, zero)
        return engine

    return rig


def draft_rolls_back_too_little(engine: Engine, inquiry: Inquiry) -> Engine:
    """The draft's own cache keeps one rejected entry per rejection."""
    drafter: Any = engine.drafter
    if hasattr(drafter, "executor"):
        drafter.executor = Rollback(drafter.executor, lambda rejected: 1)
    return engine
