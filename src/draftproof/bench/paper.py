"""Every table of the paper: runs what is not yet in the results, and writes the reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftproof.bench.cells import PLAIN, Cell
from draftproof.bench.journal import Journal, environment
from draftproof.bench.report import write_reports
from draftproof.bench.runner import Runner
from draftproof.bench.settings import GRID, LOAD, SERVING, Settings, cells_of
from draftproof.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Told before each run and once at the end, when `cell` is None.

    seconds_left: from the runs so far, weighed by their tokens; None before the first one
    """

    cell: Cell | None
    done: int
    total: int
    seconds_left: float | None


@dataclass(kw_only=True)
class Paper:
    """One reproduction: settings, the models and prompts behind `runner`, and where results go.

    models: what makes these results comparable with others: names of the models, the prompts
    """

    settings: Settings
    runner: Runner
    models: Mapping[str, Any]
    folder: Path
    on_step: Callable[[Step], None] = lambda step: None

    @property
    def journal(self) -> Journal:
        """Every run so far."""
        return Journal(self.folder / "results.jsonl")

    def run(self) -> list[dict[str, Any]]:
        """Run what is missing or crashed before, write the reports, return all records."""
        others = tuple(name for name in self.settings.sections if name != SERVING)
        self._run_all(cells_of(replace(self.settings, sections=others), None))
        if SERVING in self.settings.sections:
            rate = self.settings.arrival_rate or self._rate()
            serving = replace(self.settings, sections=(SERVING,))
            self._run_all(cells_of(serving, rate))
        records = self.journal.records()
        write_reports(self.folder, records)
        return records

    def _run_all(self, cells: Sequence[Cell]) -> None:
        done = {r["key"] for r in self.journal.records() if r["status"] != "crash"}
        keyed = {cell.key(self.models): cell for cell in cells}
        todo = {key: cell for key, cell in keyed.items() if key not in done}
        pace = _Pace(list(todo.values()))
        for count, (key, cell) in enumerate(todo.items()):
            self._tell(cell, count, len(todo), pace.seconds_left(count))
            record = {"key": key, "models": dict(self.models), **self.runner.run(cell)}
            record["environment"] = environment(self.runner.models.device)
            self.journal.append(record)
        self._tell(None, len(todo), len(todo), 0.0)

    def _tell(self, cell: Cell | None, done: int, total: int, left: float | None) -> None:
        self.on_step(Step(cell=cell, done=done, total=total, seconds_left=left))

    def _rate(self) -> float:
        """Requests per second: more than plain decoding one at a time finishes, two digits."""
        first = self.settings.dtypes[0], self.settings.numerics[0]
        for record in self.journal.records():
            cell = record["cell"]
            alone = (cell["section"], cell["way"], cell["batch_size"]) == (GRID, PLAIN, 1)
            same = record["models"] == dict(self.models)
            if alone and same and record["status"] == "ok" and _format(cell) == first:
                return float(f"{LOAD * cell['num_prompts'] / record['timeline']['busy']:.2g}")
        raise InputError("the serving section needs --arrival-rate, or the grid beside it")


def _format(cell: Mapping[str, Any]) -> tuple[str, str]:
    return cell["dtype"], cell["numerics"]


class _Pace:
    """Time left, from the work done: tokens, of which a larger batch makes more per second."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._work = [cell.tokens / cell.batch_size**0.5 for cell in cells]
        self._started = time.perf_counter()

    def seconds_left(self, done: int) -> float | None:
        """When `done` cells are finished."""
        if done == 0:
            return None
        rest: float = sum(self._work[done:]) / sum(self._work[:done])
        return rest * (time.perf_counter() - self._started)
