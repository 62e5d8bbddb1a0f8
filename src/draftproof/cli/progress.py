"""A bar on stderr that follows the engine round by round."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from draftproof.cli.console import note, stderr

if TYPE_CHECKING:
    from draftproof.engine.events import RoundEvent, RowRound


class Meter:
    """An observer that counts the tokens of a run while it goes on.

    budgets:  the most tokens each row may emit; what a row leaves unused is taken off the total
              when it ends, so that the time left does not jump
    requests: how many there are, those included that `begin` will tell of; None: one per budget
    """

    def __init__(
        self,
        budgets: Sequence[int],
        clock: Callable[[], float] = time.perf_counter,
        requests: int | None = None,
    ) -> None:
        self.budgets = list(budgets)
        self.requests = requests
        self.tokens = self.drafted = self.accepted = self.finished = 0
        self._known = sum(self.budgets)
        self._base = 0
        self._clock = clock
        self._started = clock()

    def begin(self, budgets: Sequence[int]) -> None:
        """Rows of the next call of the engine, which counts them from 0 again."""
        self._base = len(self.budgets)
        self.budgets += budgets
        self._known += sum(budgets)

    @property
    def total(self) -> int:
        """Tokens that are to be expected in all, from the budgets known so far."""
        known = len(self.budgets)
        more = max(0, (self.requests or known) - known)
        return self._known + more * self._known // max(1, known)

    def on_round(self, event: RoundEvent) -> None:
        """Count one round."""
        for row in event.rows:
            self._count(row)

    def _count(self, row: RowRound) -> None:
        self.tokens += len(row.emitted)
        self.budgets[self._base + row.index] -= len(row.emitted)
        if row.target_ids:  # a row that only read its prompt has none
            self.drafted += len(row.target_ids) - 1
            self.accepted += min(row.accepted, len(row.emitted))
        if row.finish_reason is not None:
            self.finished += 1
            self._known -= self.budgets[self._base + row.index]

    @property
    def seconds(self) -> float:
        """Wall time since the run began."""
        return self._clock() - self._started

    def status(self) -> str:
        """What the bar says beside itself."""
        rate = self.tokens / max(self.seconds, 1e-9)
        rows = max(self.requests or 0, len(self.budgets))
        words = [f"{self.finished}/{rows} requests", f"{rate:.1f} tokens/s"]
        if self.drafted:
            words.append(f"{self.accepted / self.drafted:.0%} accepted")
        return ", ".join(words)


LOG_SECONDS = 10.0  # between two lines of progress in a log


class ProgressBar:
    """Shows a meter; as an observer it updates with every round.

    Where there is no terminal, a line every ten seconds says how far it is.
    """

    def __init__(self, meter: Meter, console: Console | None = None) -> None:
        console = console or stderr()
        self.meter = meter
        self._bar = Progress(
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            # Results that go to the same terminal are moved above the bar. Results that go to a
            # file or a pipe are not: rich would send them to stderr with the bar.
            redirect_stdout=sys.stdout.isatty(),
            refresh_per_second=4,
        )
        self._logged = 0.0
        self._task = self._bar.add_task("", total=meter.total, status=meter.status())

    def on_round(self, event: RoundEvent) -> None:
        """Count one round and show it."""
        self.meter.on_round(event)
        if self._bar.disable:
            self._log()
            return
        self._bar.update(
            self._task,
            completed=self.meter.tokens,
            total=self.meter.total,
            status=self.meter.status(),
        )

    def _log(self) -> None:
        seconds = self.meter.seconds
        if seconds - self._logged >= LOG_SECONDS:
            self._logged = seconds
            note(f"{seconds:.0f} s: {self.meter.status()}")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
