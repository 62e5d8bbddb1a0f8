"""How many tokens a row drafts, from how many of its drafts were accepted so far.

Never changes a token of greedy and seeded rows, nor the distribution of others: a choice at a
position does not depend on how far ahead was drafted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.types import SpecStats


class Schedule(Protocol):
    """Decides K of one row for its next round."""

    def wanted(self, stats: SpecStats, most: int) -> int:
        """Draft tokens, 0 .. most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """Always K."""

    def wanted(self, stats: SpecStats, most: int) -> int:
        return most


CONSTANT = Constant()


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptive:
    """The K with the most tokens per unit of time at the row's estimated acceptance.

        tokens per round   (1 - a^(K + 1)) / (1 - a)
        time per round     K x cost + 1

    a is the share of drafts accepted among those that were decided: all accepted ones and the
    first rejected one of each round. It starts at `prior`, which weighs as much as `weight` drafts.

    cost: time of a draft step over time of the target's round
    """

    cost: float = 0.1
    prior: float = 0.8
    weight: float = 8.0

    def wanted(self, stats: SpecStats, most: int) -> int:
        # at least 1 where drafting is on: a row that stops drafting could never recover
        if most == 0:
            return 0
        rate = self.acceptance(stats)
        return max(range(1, most + 1), key=lambda count: self.speed(rate, count))

    def acceptance(self, stats: SpecStats) -> float:
        """Estimated probability that a draft is accepted once those before it were, in (0, 1)."""
        accepted = stats.num_accepted_draft_tokens + self.prior * self.weight
        rejected = stats.correction_tokens + (1 - self.prior) * self.weight
        return accepted / (accepted + rejected)

    def speed(self, rate: float, count: int) -> float:
        """Expected tokens per time of one target forward."""
        return (1 - rate ** (count + 1)) / (1 - rate) / (count * self.cost + 1)
