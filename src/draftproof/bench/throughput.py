"""How fast, beside whom, and how near to what the two models' forwards alone allow."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.bench.cells import PLAIN, Cell
from draftproof.bench.journal import Journal, environment
from draftproof.bench.runner import Runner

THROUGHPUT, SCALING = "throughput", "scaling"
MOST = 8  # of auto


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What is measured: every batch size, tier and K; K = 0 is plain decoding and always there.

    contexts:  tokens per prompt for the cost of a round; none: prompts as they are
    """

    batch_sizes: Sequence[int] = (1, 4, 8)
    drafts: Sequence[int | str] = ("auto", 4)
    numerics: Sequence[str] = ("exact", "fast")
    method: str = "rows"
    dtype: str = "bfloat16"
    num_prompts: int = 24
    max_new_tokens: int = 48
    contexts: Sequence[int] = ()

    def cells(self) -> Iterator[Cell]:
        """Plain decoding first: the others are compared with it. Tiers alternate."""
        for context in self.contexts or (0,):
            for size in self.batch_sizes:
                for drafted in dict.fromkeys([0, *self.drafts]):
                    for numerics in self.numerics:
                        yield self._cell(context, size, drafted, numerics)

    def _cell(self, context: int, size: int, drafted: int | str, numerics: str) -> Cell:
        return Cell(
            section=SCALING if context else THROUGHPUT,
            way=self.method if drafted else PLAIN,
            batch_size=size,
            k=MOST if drafted == "auto" else int(drafted),
            auto=drafted == "auto",
            dtype=self.dtype,
            numerics=numerics,
            num_prompts=size if context else max(size, self.num_prompts),
            max_new_tokens=self.max_new_tokens,
            prompts="context" if context else "workload",
            length=context,
        )


@dataclass(kw_only=True)
class Measurement:
    """Runs a grid into `results.jsonl`; a second call goes on where the first one stopped.

    models: what makes results comparable, see `Paper`
    """

    grid: Grid
    runner: Runner
    models: Mapping[str, Any]
    folder: Path
    tell: Callable[[str], None] = lambda text: None
    journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder / "results.jsonl")

    def run(self) -> list[dict[str, Any]]:
        """The records of this grid."""
        done = {r["key"]: r for r in self.journal.records() if r["status"] != "crash"}
        records = []
        for cell in self.grid.cells():
            key = cell.key(self.models)
            if key not in done:
                self.tell(cell.label)
                record = {"key": key, "models": dict(self.models), **self.runner.run(cell)}
                record["environment"] = environment(self.runner.models.device)
                record["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                self.journal.append(record)
                done[key] = record
            records.append(done[key])
        return records
