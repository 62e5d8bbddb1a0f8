"""Totals over results: tokens, speed, acceptance, and which modes really ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from draftproof.types import Result, SpecStats


@dataclass(kw_only=True, slots=True)
class Summary:
    """Counters of many results and the wall time they took."""

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    stats: SpecStats = field(default_factory=SpecStats)
    modes: set[str] = field(default_factory=set)
    numerics: set[str] = field(default_factory=set)
    audits: Counter[str] = field(default_factory=Counter)
    mismatches: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one result."""
        self.requests += 1
        self.tokens += len(result.token_ids)
        self.stats += result.stats
        self.modes.add(result.mode)
        self.numerics.add(result.numerics)
        if result.audited is not None:
            self.audits[result.audited.outcome] += 1
            if result.audited.failed:
                self.mismatches.append(result)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of wall time, prefill included."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "mode": ", ".join(sorted(self.modes)),
            "numerics": ", ".join(sorted(self.numerics)),
            "stats": self.stats.as_dict(),
            **({"audits": dict(self.audits)} if self.audits else {}),
        }

    def sentence(self) -> str:
        """For people."""
        words = [
            f"{self.requests} request{'s' * (self.requests != 1)}",
            f"{self.tokens} tokens in {self.seconds:.1f} s",
            f"{self.tokens_per_second:.1f} tokens/s",
        ]
        if self.stats.num_draft_tokens:
            words.append(f"acceptance {percent(self.stats.draft_acceptance_rate)}")
            words.append(f"mean acceptance length {self.stats.mean_acceptance_length:.2f}")
        words += [f"mode {', '.join(sorted(self.modes))}"] if self.modes else []
        words += [f"numerics {', '.join(sorted(self.numerics))}"] if self.numerics else []
        if self.audits:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(self.audits.items()))
            words.append(f"audits: {counts}")
        return ", ".join(words)


def summarise(results: Iterable[Result], seconds: float) -> Summary:
    """The summary of results that took `seconds` together."""
    summary = Summary(seconds=seconds)
    for result in results:
        summary.add(result)
    return summary


def percent(share: float) -> str:
    """100% only when it is all of it: 99.96% is never shown as 100.0%."""
    rounded = f"{share:.1%}"
    return "99.9%" if rounded == "100.0%" and share < 1 else rounded
