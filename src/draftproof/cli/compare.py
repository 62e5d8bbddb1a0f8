"""Exact and partial match of token ids, row by row: pure functions, no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first place where a row differs; an id is None where that side had already ended."""

    row: int
    position: int
    expected: int | None
    found: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Rows compared with their reference.

    partial: mean over the rows of (matching prefix) / (length of the reference), 0 to 1
    """

    rows: int
    partial: float
    divergences: tuple[Divergence, ...]

    @property
    def exact(self) -> int:
        """Rows with the same ids from the first to the last."""
        return self.rows - len(self.divergences)

    @property
    def equal(self) -> bool:
        """Whether every row is exact."""
        return not self.divergences


def common_prefix(reference: Sequence[int], found: Sequence[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(reference, found, strict=False)
    shorter = min(len(reference), len(found))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def first_divergence(row: int, reference: Sequence[int], found: Sequence[int]) -> Divergence | None:
    """Where a row first differs, also by being shorter or longer; None when equal."""
    position = common_prefix(reference, found)
    if position == len(reference) == len(found):
        return None
    return Divergence(
        row=row,
        position=position,
        expected=_at(reference, position),
        found=_at(found, position),
    )


def partial_match(reference: Sequence[int], found: Sequence[int]) -> float:
    """Share of the reference before the first difference; an empty reference counts as matched
    only by an empty row."""
    if not reference:
        return float(not found)
    return common_prefix(reference, found) / len(reference)


def compare(references: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> Comparison:
    """Every row against its reference, in the same order."""
    pairs = list(zip(references, found, strict=True))
    divergences = [first_divergence(row, a, b) for row, (a, b) in enumerate(pairs)]
    shares = [partial_match(a, b) for a, b in pairs]
    return Comparison(
        rows=len(pairs),
        partial=sum(shares) / len(shares) if shares else 1.0,
        divergences=tuple(d for d in divergences if d is not None),
    )


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None
