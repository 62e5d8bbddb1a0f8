"""Records of `results.jsonl`, and the numbers that tables and plots are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.bench.cells import BASELINE, PLAIN
from draftproof.bench.metrics import acceptance_per_token, partial_match, wilson

Record = Mapping[str, Any]
# what two runs must share to be compared; K and the options of a method are its own affair
SETTINGS = (
    "section",
    "way",
    "batch_size",
    "dtype",
    "numerics",
    "num_prompts",
    "prompts",
    "length",
    "max_new_tokens",
    "rate",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How many of a run's outputs are those of plain decoding one at a time."""

    exact: int
    total: int
    partial: float

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %."""
        return wilson(self.exact, self.total)


class Results:
    """Records of one results file, with the questions that tables ask."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.all = list(records)
        self.ok = [record for record in records if record["status"] == "ok"]

    def of(self, *sections: str) -> list[Record]:
        """Finished runs of these sections, in the order in which they ran."""
        return [record for record in self.ok if record["cell"]["section"] in sections]

    def like(self, record: Record, **changes: Any) -> Record | None:
        """The run on the same models and prompts that differs from a record in these settings."""
        wanted = {**record["cell"], **changes}
        for other in self.ok:
            same = all(other["cell"][name] == wanted[name] for name in SETTINGS)
            if same and other["models"] == record["models"]:
                return other
        return None

    def agreement(self, record: Record, category: str | None = None) -> Agreement | None:
        """Against plain decoding one at a time in the same number format, by token ids."""
        reference = self.like(record, way=PLAIN, batch_size=1)
        if reference is None:
            return None
        pairs = [
            (ours["token_ids"], theirs["token_ids"])
            for ours, theirs in zip(record["rows"], reference["rows"], strict=True)
            if category in (None, ours["category"])
        ]
        partial = sum(partial_match(*pair) for pair in pairs) / max(1, len(pairs))
        exact = sum(ours == theirs for ours, theirs in pairs)
        return Agreement(exact=exact, total=len(pairs), partial=partial)

    def speedup(self, record: Record, **changes: Any) -> float | None:
        """Decode speed over that of another run."""
        other = self.like(record, **changes)
        return None if other is None else decode_rate(record) / max(decode_rate(other), 1e-9)


def decode_rate(record: Record) -> float:
    """Tokens per second of rounds in which no prompt was read."""
    line = record["timeline"]
    return float(line["decode_tokens"] / max(line["decode"], 1e-9))


def wall_rate(record: Record) -> float:
    """Tokens per second of the whole run, reading the prompts included."""
    return float(record["tokens"] / max(record["timeline"]["busy"], 1e-9))


def share(record: Record, part: str) -> float:
    """Share of a part in the time of decoding rounds."""
    line = record["timeline"]
    return float(line["parts"][part] / max(line["decode"], 1e-9))


def per_token(record: Record) -> float:
    """a in the formulas."""
    stats = record["stats"]
    return acceptance_per_token(
        stats["num_accepted_draft_tokens"], stats["num_spec_steps"], stats["full_accept_rounds"]
    )


def step_cost(record: Record, plain: Record | None) -> float | None:
    """One draft step / one plain target step, both as they ran at this batch size."""
    drafted = record["cell"]["k"] * record["timeline"]["decode_rounds"]
    if plain is None or not drafted or not plain["timeline"]["parts"]["verify"]:
        return None
    target = plain["timeline"]["parts"]["verify"] / plain["timeline"]["decode_rounds"]
    return float(record["timeline"]["parts"]["draft"] / drafted / target)


def baseline(record: Record) -> str:
    """Plain decoding on the same layout."""
    way: str = record["cell"]["way"]
    return BASELINE.get(way, way)
