"""What a forward costs on this machine, by how many tokens it is fed: state while it runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

REMEMBERED = 50  # measurements per token count, about
TRUSTED = 2  # as many of them are believed; the first call with a new count may set kernels up
OLD = 100  # measurements of other counts after which new ones count for more
STALE = 1000  # measurements of other counts after which one is forgotten
UNKNOWN_SLOPE = 0.1  # of proportional growth, where a single token count is all that is known
UNKNOWN_POWER = 0.45  # of their number, in which fewer tokens are quicker then, down to an eighth
PRECISE = 0.02  # relative error that the costs of all counts should have
HICCUP = 1.5  # a measurement further off than this counts as if it were not
JUMP = 1.35  # the machine's speed has changed at once when the last LOOKS forwards all say so
LOOKS = 3


@dataclass(slots=True)
class _Entry:
    """Measurements of one token count, or of a few neighbours.

    seconds: their geometric mean, in which old ones fade
    tokens:  the mean of the counts
    weight:  how many they are, about
    when:    the last of them
    """

    seconds: float = 0.0
    tokens: float = 0.0
    weight: int = 0
    when: int = 0

    def add(self, tokens: int, seconds: float) -> float:
        """One more; returns by how much that changes the mean, 0 if it is the first one."""
        self.weight = min(self.weight + 1, REMEMBERED)
        self.tokens += (tokens - self.tokens) / self.weight
        before, ratio = self.seconds, seconds / max(self.seconds, 1e-12)
        if self.weight == 1:
            self.seconds = seconds
        elif self.weight == 2 and not 1 / HICCUP < ratio < HICCUP:
            self.seconds = min(seconds, before)  # what disturbs only ever adds
        else:
            self.seconds *= clipped(ratio) ** (1.0 / self.weight)
        return self.seconds / before if before else 0.0


def clipped(ratio: float) -> float:
    """As far off as is believed."""
    return min(HICCUP, max(1 / HICCUP, ratio))


@dataclass(slots=True)
class MachineSpeed:
    """How slow the machine is now, relative to when the measurements began.

    All costs share it, so that an old measurement can be compared with a new one although another
    program has taken half of the machine meanwhile, or the contexts have grown. What is remembered
    of a token count changes more slowly, so that it stays a measure.
    """

    factor: float = 1.0
    share: float = 0.05
    _looks: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKS))
    _since: deque[list[tuple[_Entry, float]]] = field(default_factory=lambda: deque(maxlen=LOOKS))
    _open: list[tuple[_Entry, float]] = field(default_factory=list)

    def note(self, entry: _Entry, change: float) -> None:
        """A measurement was made at the present speed, as far as is known, and changed an entry."""
        self._open.append((entry, change))

    def observe(self, ratio: float) -> None:
        """ratio: what a forward took to what it was expected to take."""
        self.factor *= float(clipped(ratio) ** self.share)
        self._looks.append(ratio)
        self._since.append(self._open)
        self._open = []
        same = min(self._looks) > JUMP or max(self._looks) < 1 / JUMP
        if same and len(self._looks) == LOOKS:
            self._jump(median(self._looks))

    def _jump(self, ratio: float) -> None:
        """What was noted since the first of these looks was measured at the new speed."""
        self.factor *= ratio
        for entry, change in [item for noted in self._since for item in noted]:
            entry.seconds /= change or ratio
        self._looks.clear()
        self._since.clear()


@dataclass(slots=True)
class Costs:
    """Seconds by token count: means of the last measurements, made to never fall with the count.

    Between two counts it is a straight line. A step, such as a kernel that computes 40 rows where
    5 are wanted, is what the counts on both sides of it say. Nothing is assumed of its shape but
    that more tokens never take less time.

    Where measurements of the same count differ, as many of the counts around it are averaged
    (along a straight line) as it takes to know the cost to PRECISE. Where they do not, every count
    is what was measured.

    What was measured once, or long ago, counts as not known: the guess from its neighbours is
    rather too short than too long, so that it is tried again.

    tells_speed: whether these measurements say how slow the machine is
    noise: how far a measurement is from the mean of its count, relative, in half of the cases
    """

    speed: MachineSpeed = field(default_factory=MachineSpeed)
    tells_speed: bool = True
    noise: float = 0.5 * PRECISE
    _entries: dict[int, _Entry] = field(default_factory=dict)
    _clock: int = 0
    _moved: float = 0.0  # by how much entries have changed since the last fit
    _counts: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._entries)

    def observe(self, tokens: int, seconds: float) -> None:
        """Add one measurement."""
        seconds = max(seconds, 1e-9)
        expected = self.seconds(tokens)
        entry = self._entries.setdefault(_size(tokens), _Entry())
        self._clock += 1
        age = self._clock - entry.when
        entry.weight = 0 if age > STALE else min(entry.weight, LOOKS) if age > OLD else entry.weight
        entry.when = self._clock
        change = entry.add(tokens, seconds / self.speed.factor)
        self.speed.note(entry, change)
        if entry.weight > 3 and expected > 0:
            ratio = seconds / expected
            self.noise *= 1.1 if abs(math.log(max(ratio, 1e-9))) > self.noise else 1 / 1.1
            self.noise = min(0.5, max(1e-3, self.noise))
            if self.tells_speed:
                self.speed.observe(ratio)
        self._moved += abs(change - 1.0)
        if entry.weight <= LOOKS or self._moved > 2 * PRECISE:
            self._counts, self._moved = [], 0.0

    def seconds(self, tokens: float) -> float:
        """Expected time of a forward; 0 while nothing is known."""
        if not tokens or not self._entries:
            return 0.0
        if not self._counts:
            self._fit()
        return self.speed.factor * self._at(tokens)

    def _at(self, tokens: float) -> float:
        counts, values = self._counts, self._values
        above = bisect_right(counts, tokens)
        if above == 0:
            return self._below(tokens)
        low, bottom = counts[above - 1], values[above - 1]
        if above == len(counts):
            return bottom + self._slope() * (tokens - low)
        share = (tokens - low) / (counts[above] - low)
        return bottom + share * (values[above] - bottom)

    def _below(self, tokens: float) -> float:
        """Fewer than ever measured."""
        first, share = self._values[0], tokens / self._counts[0]
        if len(self._counts) == 1:
            return float(first * max(share, 0.125) ** UNKNOWN_POWER * min(1.0, 8 * share))
        return max(first - self._slope() * (self._counts[0] - tokens), first * share)

    def _slope(self) -> float:
        """Seconds per token beyond what was measured."""
        counts, values = self._counts, self._values
        if len(counts) == 1:
            return UNKNOWN_SLOPE * values[0] / counts[0]
        return (values[-1] - values[0]) / (counts[-1] - counts[0])

    def _fit(self) -> None:
        """Of what was measured once, only what is shorter than expected is believed."""
        fresh = {n: e for n, e in list(self._entries.items()) if self._clock - e.when <= STALE}
        trusted = {n: e for n, e in fresh.items() if e.weight >= TRUSTED} or fresh
        self._smooth(trusted)
        short = {n: e for n, e in fresh.items() if n not in trusted and e.seconds < self._at(n)}
        if short:
            self._smooth(trusted | short)

    def _smooth(self, entries: Mapping[int, _Entry]) -> None:
        found = [entries[size] for size in sorted(entries)]
        points = [(entry.tokens, entry.seconds, float(entry.weight)) for entry in found]
        needed = (1.5 * self.noise / PRECISE) ** 2  # of a normal distribution
        values = [
            value if weight >= needed else _line(points, tokens, needed)
            for tokens, value, weight in points
        ]
        self._counts = [tokens for tokens, _, _ in points]
        self._values = _rising(values, [weight for _, _, weight in points])


def _line(points: list[tuple[float, float, float]], tokens: float, needed: float) -> float:
    """The value at a token count of the straight line through the points around it.

    points: token count, seconds, weight; near ones count more, out to where there is enough weight
    """
    distances = [math.log(count / tokens) ** 2 for count, _, _ in points]
    width, near, total = 0.1, [1.0] * len(points), 0.0
    while total < needed and width < 1.0:
        near = [math.exp(-0.5 * distance / width**2) for distance in distances]
        total = sum([share * point[2] for share, point in zip(near, points, strict=True)])
        width *= 2.0
    weights = x = y = xx = xy = 0.0
    for share, (count, value, weight) in zip(near, points, strict=True):
        if share > 1e-3:
            w, d = share * weight / value**2, count - tokens
            weights, x, y = weights + w, x + w * d, y + w * value
            xx, xy = xx + w * d * d, xy + w * d * value
    spread = xx - x * x / weights
    slope = (xy - x * y / weights) / spread if spread > 1e-9 * weights else 0.0
    return max((y - max(slope, 0.0) * x) / weights, 0.1 * y / weights)


def _rising(values: list[float], weights: list[float]) -> list[float]:
    """Pool neighbours whose order is wrong (isotonic regression), each by its weight."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, entries
    for block in zip(values, weights, [1] * len(values), strict=True):
        while blocks and blocks[-1][0] >= block[0]:
            mean, weight, number = blocks.pop()
            total = weight + block[1]
            pooled = (mean * weight + block[0] * block[1]) / total
            block = (pooled, total, number + block[2])
        blocks.append(block)
    return [mean for mean, _, number in blocks for _ in range(number)]


def _size(tokens: int) -> int:
    """Counts that share an entry; rounded up, so that a step at a multiple of 4 stays one."""
    step = 1 if tokens <= 48 else 4 if tokens <= 160 else 16
    return -(-tokens // step) * step
