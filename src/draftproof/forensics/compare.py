"""Exact and partial match of token ids, row by row: pure functions, no models."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
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

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the exact match rate."""
        return wilson(self.exact, self.rows)


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


# -- more than one number --------------------------------------------------------------------------


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a rate, honest for few rows and for rates of 0 and 1 (Wilson 1927).

    z: normal quantile; 1.96 for 95 %. Nothing measured is (0, 1).
    """
    if total == 0:
        return 0.0, 1.0
    rate, square = hits / total, z * z / total
    centre = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(rate * (1 - rate) / total + square / (4 * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def survival(references: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> list[float]:
    """Share of rows still equal after n tokens, n = 0 .. longest reference.

    A row whose reference has ended counts as it ended, so that the curve never rises.
    """
    matched = [
        math.inf if list(a) == list(b) else common_prefix(a, b)
        for a, b in zip(references, found, strict=True)
    ]
    longest = max(map(len, references), default=0)
    return [sum(m >= n for m in matched) / max(1, len(matched)) for n in range(longest + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rows that share a category, a prompt length, ..."""

    name: str
    comparison: Comparison


def grouped(
    keys: Sequence[Hashable],
    references: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
    name: Callable[[Hashable], str] = str,
) -> list[Group]:
    """One comparison per distinct key, in order of first appearance."""
    groups = []
    for key in dict.fromkeys(keys):
        rows = [i for i, own in enumerate(keys) if own == key]
        match = compare([references[i] for i in rows], [found[i] for i in rows])
        groups.append(Group(name=name(key), comparison=match))
    return groups


# -- rules about the end of a row ------------------------------------------------------------------


def overshoot(reference: Sequence[int], found: Sequence[int]) -> int | None:
    """Tokens that one side has after all of the other's; negative when it is the shorter one.

    None when they differ before either ends.
    """
    if common_prefix(reference, found) < min(len(reference), len(found)):
        return None
    return len(found) - len(reference)
