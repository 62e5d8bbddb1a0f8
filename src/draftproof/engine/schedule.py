"""How many tokens the rows of a round draft.

Never changes a token of greedy and seeded rows, nor the distribution of others: a choice at a
position does not depend on how far ahead was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from draftproof.phases import UNTIMED, RoundTimer
from draftproof.types import SpecStats

if TYPE_CHECKING:
    import torch

    from draftproof.batch import Row
    from draftproof.drafters.base import Drafter


class Schedule(Protocol):
    """Decides K of every row of a round."""

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        """Draft tokens of each decoding row, `0 .. most[r]`.

        reading: prompt tokens of other rows that are fed in the same round
        """

    def start(self, device: torch.device, drafter: Drafter) -> RoundTimer:
        """A run begins, of a target on `device`; who is to be told of its rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """Always K."""

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        return list(most)

    def start(self, device: torch.device, drafter: Drafter) -> RoundTimer:
        return UNTIMED


CONSTANT = Constant()


@dataclass(frozen=True, kw_only=True, slots=True)
class Adaptive:
    """The K with the most tokens per unit of time at the row's estimated acceptance.

        tokens per round   (1 - a^(K + 1)) / (1 - a)
        time per round     K x cost + 1

    a is the share of drafts accepted among those that were decided: all accepted ones and the
    first rejected one of each round. It starts at `prior`, which weighs as much as `weight` drafts.
    Nothing is measured: the same row drafts the same in every run.

    cost: time of a draft step over time of the target's round
    """

    cost: float = 0.1
    prior: float = 0.8
    weight: float = 8.0

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        return [self.wanted(row.stats, limit) for row, limit in zip(rows, most, strict=True)]

    def start(self, device: torch.device, drafter: Drafter) -> RoundTimer:
        return UNTIMED

    def wanted(self, stats: SpecStats, most: int) -> int:
        """Draft tokens of a row, 0 .. most."""
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
