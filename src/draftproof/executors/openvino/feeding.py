"""What a graph is given for ragged tokens: as they are, or in shapes that make rows independent.

Numbers only: no model, no tensor of OpenVINO.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftproof.numerics.shapes import Rows, Shapes
from draftproof.types import RaggedTokens

FORWARD = "forward"  # the rule in `Shapes.products` for the tokens of a call, and for its logits


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """One call of the graph.

    ids:     [N] int64
    rows:    whose cache `counts[i]` tokens from position `starts[i]` belong to
    kept:    flat indices of the tokens whose logits are computed; the first `wanted` are asked for
    """

    ids: Any
    rows: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    kept: Sequence[int]
    wanted: int


def feeds(
    tokens: RaggedTokens, known: Sequence[Sequence[int]], shapes: Shapes, filler: int
) -> Iterator[Feed]:
    """The calls for some tokens; their wanted logits, one after the other, are those of `tokens`.

    known:   ids of every row's cached tokens; read where `shapes.least` is more than 1
    filler:  a row whose cache nobody reads
    """
    rule = shapes.rows_of(FORWARD)
    if shapes.least == 1 and not rule.sizes:
        kept = tokens.kept_indices
        yield Feed(
            ids=tokens.ids.numpy(),
            rows=tokens.rows,
            starts=tokens.starts,
            counts=tokens.counts,
            kept=kept or [0],
            wanted=len(kept),
        )
        return
    pieces = [_widened(piece, known, shapes.least) for piece in _pieces(tokens)]
    for call in _calls(pieces, rule.most, shapes.least):
        yield _filled(call, rule, filler)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of one row, in a row: `ids` from position `start`; logits of those at `kept`."""

    row: int
    start: int
    ids: list[int]
    kept: range

    def cut(self, count: int) -> tuple[_Piece, _Piece]:
        """The first `count` tokens, and the rest."""
        first, last = self.kept.start, self.kept.stop
        head = range(min(first, count), min(last, count))
        tail = range(max(first, count) - count, max(last, count) - count)
        return (
            _Piece(self.row, self.start, self.ids[:count], head),
            _Piece(self.row, self.start + count, self.ids[count:], tail),
        )


def _pieces(tokens: RaggedTokens) -> Iterator[_Piece]:
    ids, position = tokens.ids.tolist(), 0
    for row, start, count, keep in zip(
        tokens.rows, tokens.starts, tokens.counts, tokens.keep, strict=True
    ):
        yield _Piece(row, start, ids[position : position + count], range(count - keep, count))
        position += count


def _widened(piece: _Piece, known: Sequence[Sequence[int]], least: int) -> _Piece:
    """At least `least` tokens: cached ones again, and where there are none something behind them.

        cached a b c, fed d        ->   fed c d, of which d is new
        cached nothing, fed a      ->   fed a a, of which the second is stale at once

    What is fed again writes what it wrote before.
    """
    lacking = max(0, least - len(piece.ids))
    again = min(lacking, piece.start)
    start = piece.start - again
    ids = [*known[piece.row][start : piece.start], *piece.ids]
    ids += ids[-1:] * (lacking - again)
    kept = range(piece.kept.start + again, piece.kept.stop + again)
    return _Piece(piece.row, start, ids, kept)


def _calls(pieces: Iterable[_Piece], most: int, least: int) -> Iterator[list[_Piece]]:
    """Pieces that go together: at most `most` tokens, and no row less than `least`."""
    call: list[_Piece] = []
    room = most
    for piece in pieces:
        rest = piece
        while len(rest.ids) > room:
            head = min(room, len(rest.ids) - least)
            if head >= least:
                first, rest = rest.cut(head)
                call.append(first)
            yield call
            call, room = [], most
        call.append(rest)
        room -= len(rest.ids)
    if call:
        yield call


def _filled(call: Sequence[_Piece], rule: Rows, filler: int) -> Feed:
    """As many tokens, and as many logits, as the rule allows."""
    sheet = _Sheet()
    for piece in call:
        sheet.add(piece)
    wanted, count = len(sheet.kept), len(sheet.ids)
    kept = sheet.kept or [0]
    kept = kept + kept[-1:] * (rule.filled(len(kept)) - len(kept))
    if lacking := rule.filled(count) - count:
        sheet.add(_Piece(filler, 0, [0] * lacking, range(0)))
    return Feed(
        ids=np.array(sheet.ids, np.int64),
        rows=sheet.rows,
        starts=sheet.starts,
        counts=sheet.counts,
        kept=kept,
        wanted=wanted,
    )


@dataclass(slots=True)
class _Sheet:
    """A call while it is put together."""

    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    def add(self, piece: _Piece) -> None:
        self.kept += [len(self.ids) + index for index in piece.kept]
        self.ids += piece.ids
        self.rows.append(piece.row)
        self.starts.append(piece.start)
        self.counts.append(len(piece.ids))
