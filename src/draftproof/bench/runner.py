"""Runs one cell: the engine round by round under clocks, and one record of what came of it."""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import torch

from draftproof.api import Pair
from draftproof.bench.cells import FAULTY, Cell, method_of
from draftproof.bench.clocks import DRAFT, PARTS, REST, Stopwatch, put_clocks_around, synchronised
from draftproof.bench.workloads import Question, equal_lengths, poisson_arrivals, random_lengths
from draftproof.engine.engine import Commit, Engine
from draftproof.engine.methods import Method
from draftproof.errors import DraftproofError
from draftproof.options import Options
from draftproof.types import SpecStats

BUDGET = 2048  # tokens per forward


class Models(Protocol):
    """Where the pairs come from."""

    device: torch.device

    def pair(self, dtype: str, numerics: str, method: Method) -> Pair:
        """A target and its draft in one number format, under one method."""


@dataclass(kw_only=True)
class Timeline:
    """One run of an engine, in seconds of its own clock; decoding apart from reading prompts.

    clock:      when the last row finished; idle time until the next arrival included
    busy:       seconds within rounds
    decode:     seconds of rounds in which no row read its prompt; `tokens` and `rounds` likewise
    parts:      seconds of those rounds by part
    latencies:  seconds from arrival to the end, by request
    """

    clock: float = 0.0
    busy: float = 0.0
    rounds: int = 0
    decode: float = 0.0
    decode_tokens: int = 0
    decode_rounds: int = 0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    latencies: dict[int, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Drive:
    """Steps an engine to its end, admitting each request when it arrives."""

    engine: Engine
    watch: Stopwatch
    timeline: Timeline = field(default_factory=Timeline)
    finished: dict[int, Commit] = field(default_factory=dict)

    def run(self, requests: Sequence[Any], arrivals: Sequence[float]) -> None:
        """arrivals: seconds, ascending. Time passes only in rounds, and where nothing is to do."""
        pending = list(zip(arrivals, requests, strict=True))
        while pending or self.engine.scheduler.waiting or self.engine.batch.rows:
            while pending and pending[0][0] <= self.timeline.clock:
                self.engine.add(pending.pop(0)[1])
            if self.engine.scheduler.waiting or self.engine.batch.rows:
                self._step(arrivals)
            else:
                self.timeline.clock = pending[0][0]

    def _step(self, arrivals: Sequence[float]) -> None:
        before = dict(self.watch.seconds)
        with self.watch.span(REST):
            commits = self.engine.step()
        spent = {part: self.watch.seconds[part] - before.get(part, 0.0) for part in PARTS}
        self._count(commits, spent)
        for commit in commits:
            if commit.row.finish_reason is not None:
                index = commit.row.request.index
                self.finished[index] = commit
                self.timeline.latencies[index] = self.timeline.clock - arrivals[index]

    def _count(self, commits: Sequence[Commit], spent: Mapping[str, float]) -> None:
        line, seconds = self.timeline, sum(spent.values())
        line.clock += seconds
        line.busy += seconds
        line.rounds += 1
        if any(_reads(commit) for commit in commits):
            return
        line.decode += seconds
        line.decode_rounds += 1
        line.decode_tokens += sum(len(commit.emitted) for commit in commits)
        for part, value in spent.items():
            line.parts[part] += value


def _reads(commit: Commit) -> bool:
    """Whether the row read a part of its prompt in this round."""
    return commit.row.generated == len(commit.emitted)


@dataclass(kw_only=True)
class Runner:
    """Turns cells into records.

    max_input_len: prompts are cut to this many tokens
    repeats:       runs of a cell; the fastest counts, and the tokens of all must be the same
    seed:          of arrivals and random lengths
    proposing:     what a proposal takes beside the draft's forwards is counted as this part
    """

    models: Models
    questions: Sequence[Question]
    max_input_len: int = 1024
    repeats: int = 1
    seed: int = 0
    debug: bool = False
    proposing: str = DRAFT

    def run(self, cell: Cell) -> dict[str, Any]:
        """The record of one cell. What goes wrong is recorded as what it is, and never a score."""
        started = time.time()
        try:
            outcome = {"status": "ok", **self._measure(cell)}
        except DraftproofError as error:
            outcome = {"status": "refused", "error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            outcome = {"status": "crash", "error": f"{error!r}", "where": _where(error)}
        return {"cell": asdict(cell), "seconds": time.time() - started, **outcome}

    def _measure(self, cell: Cell) -> dict[str, Any]:
        method = method_of(cell.way, cell.method_options)
        pair = self.models.pair(cell.dtype, cell.numerics, method)
        questions = list(islice(cycle(self.questions), cell.num_prompts))
        prompts = self.prompts(pair, cell, questions)
        # long enough for a full block of drafts: kernels are compiled for the shapes of both
        self._once(pair, cell, prompts[: cell.batch_size], cell.drafted + 2)
        drives = [self._once(pair, cell, prompts, cell.max_new_tokens) for _ in range(self.repeats)]
        best = min(drives, key=lambda drive: drive.timeline.busy)
        outputs = [[d.finished[i].row.emitted for i in range(len(prompts))] for d in drives]
        return {
            "settings": pair.describe() | {"target": None, "draft": None},  # see `models`
            "repeatable": all(output == outputs[0] for output in outputs),
            "prompt_tokens": sum(map(len, prompts)),
            **_counts(best),
            "rows": _rows(best, questions),
        }

    def prompts(self, pair: Pair, cell: Cell, questions: Sequence[Question]) -> list[list[int]]:
        """Token ids of a cell's prompts."""
        longest = self.max_input_len
        if pair.max_model_len is not None:
            longest = min(longest, pair.max_model_len - cell.max_new_tokens)
        ids = [pair.encode(question.text)[: max(1, longest)] for question in questions]
        if cell.prompts == "random":
            return random_lengths(ids, cell.length // 2, cell.length * 3 // 2, self.seed)
        return ids if cell.prompts == "workload" else equal_lengths(ids, cell.length)

    def _once(self, pair: Pair, cell: Cell, prompts: Sequence[Sequence[int]], new: int) -> Drive:
        options = Options(
            max_new_tokens=new,
            max_num_seqs=cell.batch_size,
            num_speculative_tokens=cell.drafted,
            max_num_batched_tokens=BUDGET,
            debug=self.debug,
        )
        if cell.auto:
            options["num_speculative_tokens"] = "auto"
            options["max_num_speculative_tokens"] = cell.k
        if cell.way in FAULTY:  # they keep no count of columns that would survive chunks
            options["max_num_batched_tokens"] = max(BUDGET, sum(map(len, prompts)))
        job = pair.prepare(prompts, **options)
        drive = Drive(engine=job.engine, watch=Stopwatch(synchronised(self.models.device)))
        if cell.clocks:
            put_clocks_around(job.engine, drive.watch, proposing=self.proposing)
        drive.run(job.requests, self._arrivals(cell, len(prompts)))
        return drive

    def _arrivals(self, cell: Cell, count: int) -> list[float]:
        return [0.0] * count if cell.rate is None else poisson_arrivals(count, cell.rate, self.seed)


def _where(error: Exception) -> list[str]:
    """The innermost calls, without the folders of this machine."""
    calls = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls]


def _counts(drive: Drive) -> dict[str, Any]:
    engine, line, stats = drive.engine, drive.timeline, SpecStats()
    for commit in drive.finished.values():
        stats += commit.row.stats
    memories: list[Any] = [engine.target, getattr(engine.drafter, "executor", None)]
    moved = [memory.realigned for memory in memories if hasattr(memory, "realigned")]
    grouping = getattr(engine.scheduler, "grouping", None)
    return {
        "tokens": sum(commit.row.generated for commit in drive.finished.values()),
        "timeline": {k: v for k, v in asdict(line).items() if k != "latencies"},
        "stats": stats.as_dict(),
        "realigned": _sum([asdict(item) for item in moved]),
        "grouping": None if grouping is None else asdict(grouping),
    }


def _sum(counters: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for counter in counters:
        for name, value in counter.items():
            total[name] += value
    return dict(total)


def _rows(drive: Drive, questions: Sequence[Question]) -> list[dict[str, Any]]:
    return [
        {
            "question": question.number,
            "category": question.category,
            "token_ids": drive.finished[index].row.emitted,
            "finish_reason": drive.finished[index].row.finish_reason,
            "latency": drive.timeline.latencies[index],
        }
        for index, question in enumerate(questions)
    ]
