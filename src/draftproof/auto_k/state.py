"""What auto-K has learned of a pair of models on a machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.auto_k.acceptance import DecidedDrafts, Spread, first_guess
from draftproof.auto_k.costs import Costs, MachineSpeed
from draftproof.phases import Phase

SMOOTHED = 0.1  # weight of the newest round in the average speed: single plans are too hopeful


@dataclass(slots=True)
class AutoKState:
    """What outlives a run: costs of this pair on this machine, and how good its drafts are.

    costs:    of each phase of a round
    accepted: of the drafts of all rows
    spread:   how much rows differ in that
    credit:   seconds that may be spent on looking whether drafting pays again
    rate:     tokens per second that pure decoding rounds are planned for, on average
    """

    speed: MachineSpeed = field(default_factory=MachineSpeed)
    costs: dict[Phase, Costs] = field(init=False)
    accepted: DecidedDrafts = field(default_factory=first_guess)
    spread: Spread = field(default_factory=Spread)
    credit: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        # the host's look-ups are too short and too uneven to say how slow the machine is
        self.costs = {p: Costs(speed=self.speed, tells_speed=p is not Phase.HOST) for p in Phase}

    def record(self, phase: Phase, size: int, seconds: float) -> None:
        """A phase of a round was timed."""
        self.costs[phase].observe(size, seconds)

    def seconds(self, phase: Phase, size: int) -> float:
        """What it is expected to take."""
        return self.costs[phase].seconds(size)

    def expect(self, rate: float) -> None:
        """A pure decoding round was planned; single plans hope for what was not measured yet."""
        self.rate += (rate - self.rate) * (SMOOTHED if self.rate else 1.0)

    def affords(self, price: float, *, income: float) -> bool:
        """Earn `income` seconds, and pay the price as soon as there is enough; save up one more."""
        self.credit += income
        if self.credit < price:
            return False
        self.credit = max(0.0, min(self.credit - price, price))
        return True
