"""What a forward costs on this machine, by how many tokens it is fed: learned while it runs."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

REMEMBERED = 5  # measurements per token count
TRUSTED = 2  # as many of them are believed; the first call with a new count may set kernels up
STALE = 1000  # measurements of other counts after which one is forgotten
UNKNOWN_SLOPE = 0.1  # of proportional growth, where a single token count is all that is known


@dataclass(slots=True)
class Pace:
    """How slow the machine is now, relative to when the measurements began.

    All costs share it, so that an old measurement can be compared with a new one although another
    program has taken half of the machine meanwhile, or the contexts have grown.
    """

    factor: float = 1.0
    share: float = 0.1

    def observe(self, found: float, expected: float) -> None:
        """found, expected: seconds of one span; a hiccup counts as twice the time at most."""
        ratio = min(2.0, max(0.5, found / max(expected, 1e-12)))
        self.factor *= float(ratio**self.share)


@dataclass(slots=True)
class _Entry:
    """Measurements of one token count, the last few, and when the last one was."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    when: int = 0

    @property
    def value(self) -> float:
        """Their median; of two the shorter, because what disturbs only ever adds."""
        return median(self.values) if len(self.values) > 2 else min(self.values)


@dataclass(slots=True)
class Costs:
    """Seconds by token count: medians of the last measurements, made to never fall with the count.

    Between two counts it is a straight line. A step, such as a kernel that computes 40 rows where
    5 are wanted, is what the counts on both sides of it say. Nothing is assumed of its shape but
    that more tokens never take less time, which also takes most of the noise out.

    What was measured once, or long ago, counts as not known: the guess from its neighbours is
    rather too short than too long, so that it is tried again.

    paces: whether these measurements say how slow the machine is
    """

    pace: Pace = field(default_factory=Pace)
    paces: bool = True
    _entries: dict[int, _Entry] = field(default_factory=dict)
    _clock: int = 0
    _counts: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._entries)

    def reaches_down_to(self, tokens: int) -> bool:
        """Whether as few tokens, or nearly so, were measured."""
        trusted = (n for n, entry in list(self._entries.items()) if len(entry.values) >= TRUSTED)
        return min(trusted, default=2 * tokens) <= 1.7 * tokens

    def observe(self, tokens: int, seconds: float) -> None:
        """Add one measurement."""
        entry = self._entries.setdefault(_size(tokens), _Entry())
        self._clock += 1
        if self._clock - entry.when > STALE:
            entry.values.clear()
        if self.paces and len(entry.values) > 2:
            self.pace.observe(seconds, entry.value * self.pace.factor)
        entry.values.append(seconds / self.pace.factor)
        entry.when = self._clock
        self._counts = []

    def seconds(self, tokens: int) -> float:
        """Expected time of a forward; 0 while nothing is known."""
        if not tokens or not self._entries:
            return 0.0
        if not self._counts:
            self._fit()
        return self.pace.factor * self._at(_size(tokens))

    def _at(self, tokens: int) -> float:
        counts, values = self._counts, self._values
        above = bisect_right(counts, tokens)
        if above == 0:  # fewer than ever measured: at least their share of what the fewest took
            share = values[0] * tokens / counts[0]
            guess = values[0] - self._slope() * (counts[0] - tokens)
            return share if len(counts) == 1 else max(guess, share)
        low, bottom = counts[above - 1], values[above - 1]
        if above == len(counts):
            return bottom + self._slope() * (tokens - low)
        share = (tokens - low) / (counts[above] - low)
        return bottom + share * (values[above] - bottom)

    def _slope(self) -> float:
        """Seconds per token beyond what was measured."""
        counts, values = self._counts, self._values
        if len(counts) == 1:
            return UNKNOWN_SLOPE * values[0] / counts[0]
        return (values[-1] - values[0]) / (counts[-1] - counts[0])

    def _fit(self) -> None:
        """Of what was measured once, only what is shorter than expected is believed."""
        fresh = {n: e for n, e in list(self._entries.items()) if self._clock - e.when <= STALE}
        trusted = {n: e for n, e in fresh.items() if len(e.values) >= TRUSTED} or fresh
        self._pool(trusted)
        short = {n: e for n, e in fresh.items() if n not in trusted and e.value < self._at(n)}
        if short:
            self._pool(trusted | short)

    def _pool(self, entries: Mapping[int, _Entry]) -> None:
        """Pool neighbours whose order is wrong (isotonic regression), each by its weight."""
        counts = sorted(entries)
        blocks: list[tuple[float, int, int]] = []  # mean, weight, entries
        for count in counts:
            block = (entries[count].value, len(entries[count].values), 1)
            while blocks and blocks[-1][0] >= block[0]:
                mean, weight, number = blocks.pop()
                total = weight + block[1]
                pooled = (mean * weight + block[0] * block[1]) / total
                block = (pooled, total, number + block[2])
            blocks.append(block)
        self._counts = counts
        self._values = [mean for mean, _, number in blocks for _ in range(number)]


def _size(tokens: int) -> int:
    """Counts that share an entry; rounded up, so that a step at a multiple of 4 stays one."""
    step = 1 if tokens <= 16 else 4 if tokens <= 64 else 16
    return -(-tokens // step) * step
