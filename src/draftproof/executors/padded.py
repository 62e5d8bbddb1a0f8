"""EqSpec's memory: a left-padded rectangle that is realigned after every round.

Source: Zhang et al., arXiv:2510.22876 (EqSpec: unpad, append, repad), from its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

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
from draftproof.executors.memory import JUNK, CachedRows
from draftproof.executors.rectangle import Rectangle, score
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class PaddedExecutor(CachedRows):
    """Rows padded on the left so that the known tokens of all of them end in the same column.

        after a round          before the next: unpad, append, repad
        . a a a a x x          . . a a a a A D D      a: 4 cached, delta +1, drafts D fed behind
        b b b b b b x          b b b b b b B D        b: 6 cached, delta 0, and fewer drafts

    Rejected entries (x) leave the rows with different numbers of tokens. Before the next forward
    each row moves by its own delta, so that padding + known tokens is the same for all; positions
    and mask are derived anew. Rows that are in place do not move, nor do rows that sit a forward
    out.

    spare: columns beyond `capacity`, for the drafts of a row that has more of them than the longest
    debug: check both invariants before every forward
    """

    spare: int = 0
    debug: bool = False
    pads: list[int] = field(init=False)
    realigned: Realigned = field(default_factory=Realigned, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pads = [0] * self.rows

    @property
    def slots(self) -> int:
        """Slots per row: the capacity and the spare columns, rounded up."""
        return self.shapes.view_of(self.capacity + self.spare)

    def first_slot(self, row: int) -> int:
        return self.pads[row]

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V]."""
        self.refuse_misfit(tokens)
        self.realign(tokens)
        self.realigned.of += 1
        rectangle = self._rectangle(tokens)
        if self.debug:
            self._check_invariants(tokens, rectangle)
        logits = score(self.model, self.cache, rectangle, tokens)
        self.grow(tokens)
        return logits

    def realign(self, tokens: RaggedTokens) -> None:
        """Bring the rows into place for these tokens; a second call finds nothing to do."""
        known = known_tokens(tokens)
        end = self.meeting(tokens, known)
        moves = [
            Move(row, self.pads[row], end - count, self.lengths[row])
            for row, count in zip(tokens.rows, known, strict=True)
        ]
        self._shift([move for move in moves if move.length and move.old != move.new])
        for move in moves:
            self.pads[move.row] = move.new

    def meeting(self, tokens: RaggedTokens, known: Sequence[int]) -> int:
        """Column in which the known tokens of every row are to end: the narrowest rectangle."""
        return max(known)

    def _shift(self, moves: Sequence[Move]) -> None:
        """One gather and one scatter per layer; the indices are built once for all layers."""
        if not moves:
            return
        indices = move_indices(moves)
        for tensor in (*self.cache.keys, *self.cache.values):
            rows, old, new = (index.to(tensor.device) for index in indices)
            tensor[rows, :, new] = tensor[rows, :, old]
        tokens = sum(move.length for move in moves)
        self.realigned.forwards += 1
        self.realigned.rows += len(moves)
        self.realigned.tokens += tokens
        self.realigned.bytes += tokens * sum(layer.bytes_per_token for layer in self.model.layers)

    def _rectangle(self, tokens: RaggedTokens) -> Rectangle:
        pads = [self.pads[row] for row in tokens.rows]
        lengths = [start + count for start, count in zip(tokens.starts, tokens.counts, strict=True)]
        begins = [pad + start for pad, start in zip(pads, tokens.starts, strict=True)]
        content = content_mask(pads, lengths)
        return Rectangle(
            rows=tokens.rows,
            begins=begins,
            counts=tokens.counts,
            content=content,
            positions=positions_of(content)[:, min(begins) :],
            shapes=self.shapes,
        )

    def _check_invariants(self, tokens: RaggedTokens, rectangle: Rectangle) -> None:
        pads, known = [self.pads[row] for row in tokens.rows], known_tokens(tokens)
        check_rectangle(tokens.rows, pads, known, pads[0] + known[0])
        check_positions(tokens.rows, rectangle.content, rectangle.positions, rectangle.live)

    def release(self, row: int) -> None:
        """Forget a row; its slots are overwritten by the next sequence."""
        super().release(row)
        self.pads[row] = 0

    def check(self) -> None:
        """Padding and content of every row fit the allocation."""
        super().check()
        for row, (pad, length) in enumerate(zip(self.pads, self.lengths, strict=True)):
            if not 0 <= pad <= self.slots - length:
                raise InvariantError(
                    f"row {row}: padding expected 0..{self.slots - length}, found {pad}"
                )

    def poison(self) -> None:
        """Overwrite padding and stale slots with junk: outputs must not change."""
        for tensor in (*self.cache.keys, *self.cache.values):
            for row, (pad, length) in enumerate(zip(self.pads, self.lengths, strict=True)):
                tensor[row, :, :pad] = JUNK
                tensor[row, :, pad + length :] = JUNK


def known_tokens(tokens: RaggedTokens) -> list[int]:
    """A row's own tokens after the forward, without the drafts: those want logits, but one."""
    return [
        start + count - max(0, keep - 1)
        for start, count, keep in zip(tokens.starts, tokens.counts, tokens.keep, strict=True)
    ]
