"""Numbers from counts. Each has one definition, here."""

from __future__ import annotations

import math
from collections.abc import Sequence


def wilson(successes: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a proportion at the confidence of `z` standard deviations (1.96: 95 %).

    Source: Wilson (1927), J. Am. Stat. Assoc. 22. Unlike the normal approximation it stays within
    0 .. 1 and says something at 0 and at 1.
    """
    if total == 0:
        return 0.0, 1.0
    share, square = successes / total, z * z
    centre = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = z * spread / (1 + square / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def common_prefix(found: Sequence[int], expected: Sequence[int]) -> int:
    """Tokens before the first difference."""
    pairs = zip(found, expected, strict=False)
    shorter = min(len(found), len(expected))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)


def partial_match(found: Sequence[int], expected: Sequence[int]) -> float:
    """Share of the output before the first wrong token; 1 exactly when the outputs are equal."""
    longer = max(len(found), len(expected))
    return 1.0 if longer == 0 else common_prefix(found, expected) / longer


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def acceptance_per_token(accepted: int, rounds: int, full_rounds: int) -> float:
    """Chance that a draft token is accepted after the one before it was: a in the formulas.

    A round ends at its first rejection, so every round that was not accepted in full holds exactly
    one: a = accepted / (accepted + rejections). It is not accepted / drafted, which counts tokens
    behind a rejection too.
    """
    tried = accepted + rounds - full_rounds
    return accepted / tried if tried else 0.0


def expected_emitted(acceptance: float, k: int) -> float:
    """Tokens per round: (1 - a^(K+1)) / (1 - a). Leviathan et al., arXiv:2211.17192."""
    if acceptance >= 1:
        return k + 1.0
    return float((1 - acceptance ** (k + 1)) / (1 - acceptance))


def predicted_speedup(acceptance: float, k: int, cost: float) -> float:
    """Speed-up over plain decoding if scoring K + 1 tokens costs as much as scoring one.

    cost: one draft step / one target step
    """
    return expected_emitted(acceptance, k) / (k * cost + 1)


def acceptance_by_position(histogram: Sequence[int], k: int) -> list[float]:
    """Share of rounds in which the draft token at position 0 .. K-1 was accepted.

    histogram: rounds by number of accepted tokens
    """
    rounds = sum(histogram)
    return [sum(histogram[place + 1 :]) / max(1, rounds) for place in range(k)]
