"""Left padding: where each row's content starts, what has to move, and the two invariants.

Source of the invariants: Zhang et al., arXiv:2510.22876, section on the ragged tensor problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.errors import InvariantError


@dataclass(slots=True)
class Realigned:
    """What realignment has cost so far; integers only.

    forwards: forwards before which at least one row had to move, of `of` forwards
    rows:     rows moved
    tokens:   cached tokens moved, in every layer
    bytes:    bytes of keys and values moved (read once and written once)
    """

    forwards: int = 0
    of: int = 0
    rows: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One row's content goes from slot `old` to slot `new`: delta = new - old."""

    row: int
    old: int
    new: int
    length: int


def move_indices(moves: Sequence[Move]) -> tuple[Tensor, Tensor, Tensor]:
    """Row, source slot and destination slot of every token that moves, each [T] int64.

    row a  old 2, new 1, length 3      rows a a a b b
    row b  old 0, new 4, length 2      from 2 3 4 0 1
                                       to   1 2 3 4 5
    """
    lengths = torch.tensor([move.length for move in moves])
    begins = lengths.cumsum(0) - lengths
    step = torch.arange(int(lengths.sum())) - begins.repeat_interleave(lengths)
    table = torch.tensor([(move.row, move.old, move.new) for move in moves])  # [M, 3]
    rows, old, new = table.repeat_interleave(lengths, dim=0).unbind(1)
    return rows, old + step, new + step


def content_mask(pads: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Which slots hold content, [R, width] bool: `lengths[r]` of them from a row's pad on."""
    begins, counts = torch.tensor(pads)[:, None], torch.tensor(lengths)[:, None]
    slots = torch.arange(int((begins + counts).max()))
    return (slots >= begins) & (slots < begins + counts)


def positions_of(content: Tensor) -> Tensor:
    """Positions from the mask alone, [R, width] int64: 0 at the first content slot, no gaps."""
    return (content.cumsum(1) - 1).clamp(min=0)


def check_rectangle(
    rows: Sequence[int], pads: Sequence[int], known: Sequence[int], width: int
) -> None:
    """I1, rectangular alignment: padding + content = one width, for every row.

    known: the row's own tokens, without the drafts that are fed behind them
    Raises InvariantError naming the first row that breaks it.
    """
    for row, pad, length in zip(rows, pads, known, strict=True):
        if pad < 0 or pad + length != width:
            raise InvariantError(
                f"I1, row {row}: padding + content: expected {width}, found {pad} + {length}"
            )


def check_positions(rows: Sequence[int], content: Tensor, positions: Tensor, live: Tensor) -> None:
    """I2, position contiguity: content without holes, positions 0, 1, 2, ... along it.

    content:   [R, width] bool, what may be attended to, the fed tokens included
    positions: [R, Q] int64 of the last Q columns
    live:      [R, Q] bool, the columns in which a row feeds a token
    Raises InvariantError naming the first row that breaks it.
    """
    for row, line, fed, fresh in zip(rows, content, positions, live, strict=True):
        slots: list[int] = line.nonzero()[:, 0].tolist()
        if slots != list(range(slots[0], slots[-1] + 1)):
            raise InvariantError(
                f"I2, row {row}: expected content in slots {slots[0]}..{slots[-1]}, "
                f"found holes among them: {slots}"
            )
        found: list[int] = fed[fresh].tolist()
        expected = list(range(len(slots) - len(found), len(slots)))
        if found != expected:
            raise InvariantError(f"I2, row {row}: positions expected {expected}, found {found}")
