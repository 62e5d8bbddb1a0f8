"""Decode a file's requests into a sink; a line that cannot be used is reported and recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from draftproof.cli import loading
from draftproof.cli.console import note
from draftproof.cli.inputs import Item
from draftproof.cli.options import EVIDENCE, DecodingOptions, ModelOptions
from draftproof.cli.progress import Meter, ProgressBar
from draftproof.cli.sinks import Sink
from draftproof.cli.summary import Summary
from draftproof.cli.survey import Survey

if TYPE_CHECKING:
    from draftproof.api import Pair
    from draftproof.cli.records import Records
    from draftproof.schema import Defaults, Work
    from draftproof.types import Result

# Requests that the engine is given at a time: enough that rows which wait for the last ones are no
# loss, and no more than fits in memory whatever the prompts.
MOST_ROWS = 1024
MOST_TOKENS = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is to be decoded, and how it is reported.

    defaults:  what lines mean that leave a field out
    names:     of the model, as lines may call it
    seed:      what the seeds of sampled requests derive from that have none of their own
    unique:    whether two lines may not have one custom_id
    audit:     share of requests that are decoded again and compared
    evidence:  folder for what a failed audit found
    """

    survey: Survey
    models: ModelOptions
    decoding: DecodingOptions
    defaults: Defaults
    records: Records
    names: Collection[str]
    seed: int
    unique: bool = False
    audit: float = 0.0
    evidence: Path = EVIDENCE


@dataclass(kw_only=True, slots=True)
class Run:
    """What is known of a run at any time, also when it is interrupted.

    failed:    lines that cannot be used
    finished:  lines that need nothing more, failed and earlier ones included
    """

    total: int
    failed: int = 0
    finished: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {"total": self.total, "finished": self.finished, "failed": self.failed}
        return {**counts, **self.summary.as_dict(), "settings": self.settings}


@dataclass(slots=True)
class _Batch:
    """Requests that go to the engine together."""

    items: list[Item] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    rows: int = 0
    tokens: int = 0

    def add(self, item: Item, work: Work) -> None:
        """One more."""
        self.items.append(item)
        self.works.append(work)
        self.rows += len(work.prompts) * work.n
        self.tokens += sum(map(len, work.ids))

    @property
    def full(self) -> bool:
        """Whether it should go."""
        return self.rows >= MOST_ROWS or self.tokens >= MOST_TOKENS


def decode_into(sink: Sink, task: Task, run: Run) -> None:
    """Do all that the sink does not hold yet; the models are loaded only if there is any."""
    done = sink.done
    run.finished = len(done)
    todo = (item for item in _judged(task) if item.index not in done)
    bad: list[Item] = []
    for item in todo:
        if item.error is None:
            _decode_all(sink, task, run, bad, item, todo)
            return
        bad.append(item)
    sink.open()
    _report(bad, sink, task, run)


def _judged(task: Task) -> Iterator[Item]:
    """Items, those whose custom_id came before with an error."""
    seen: set[bytes] = set()
    for item in task.survey.items():
        label = item.labels.get("custom_id")
        if not task.unique or label is None:
            yield item
            continue
        known = blake2b(str(label).encode("utf-8", "backslashreplace"), digest_size=12).digest()
        yield _doubled(item) if known in seen else item
        seen.add(known)


def _doubled(item: Item) -> Item:
    from draftproof.schema import RequestError

    error = RequestError("custom_id: an earlier line has the same", param="custom_id")
    return replace(item, error=error, line=None)


def _decode_all(
    sink: Sink, task: Task, run: Run, bad: Sequence[Item], first: Item, rest: Iterator[Item]
) -> None:
    """From the first item that can be decoded on; `bad` are those before it."""
    pair = loading.open_pair(task.models)
    run.settings = pair.describe() | task.decoding.report()
    sink.open()
    _report(bad, sink, task, run)
    meter = Meter([], requests=run.total - run.finished)
    started = time.perf_counter()
    try:
        with ProgressBar(meter) as bar:
            batch = _Batch()
            for item in _with(first, rest):
                _prepare(pair, item, batch, sink, task, run)
                if batch.full:
                    _decode(pair, batch, sink, task, run, bar)
                    batch = _Batch()
            _decode(pair, batch, sink, task, run, bar)
    finally:
        run.summary.seconds = time.perf_counter() - started


def _with(first: Item, rest: Iterator[Item]) -> Iterator[Item]:
    yield first
    yield from rest


def _prepare(pair: Pair, item: Item, batch: _Batch, sink: Sink, task: Task, run: Run) -> None:
    """Put an item into the batch, or report what is wrong with it."""
    from draftproof.schema import RequestError, translate

    if item.line is None:
        _report([item], sink, task, run)
        return
    # a seed by the line's content: the same after a resumed run, another for a repeated line
    drawn = {"seed": derived_seed(task.seed, item.key)}
    defaults = replace(task.defaults, options=drawn | dict(task.defaults.options))
    try:
        work = translate(
            item.line.request, pair, defaults=defaults, names=task.names, trust_templates=True
        )
    except RequestError as error:
        _report([replace(item, error=error)], sink, task, run)
        return
    if work.prediction is not None:
        unused = RequestError("prediction: cannot be used in a file", param="prediction")
        _report([replace(item, error=unused)], sink, task, run)
        return
    batch.add(item, work)


def derived_seed(seed: int, key: str) -> int:
    """48 bits, which every JSON reader holds exactly."""
    return int.from_bytes(blake2b(f"{seed}/{key}".encode(), digest_size=6).digest(), "big")


def _report(bad: Sequence[Item], sink: Sink, task: Task, run: Run) -> None:
    for item in bad:
        note(f"{item.source}: {item.error}", style="red")
        sink.write(item, task.records.failed(item))
        run.failed += 1
        run.finished += 1


def _decode(pair: Pair, batch: _Batch, sink: Sink, task: Task, run: Run, bar: ProgressBar) -> None:
    """Decode a batch; a request is written when its last answer is there."""
    if not batch.items:
        return
    from draftproof.schema import together

    prompts, options = together(batch.works)
    owners = [place for place, work in enumerate(batch.works) for _ in work.prompts]
    open_rows = Counter({i: len(work.prompts) * work.n for i, work in enumerate(batch.works)})
    results: dict[int, list[Result]] = {}
    bar.meter.begin(_budgets(batch.works))
    keywords: dict[str, Any] = {**options, **task.decoding.engine()}
    for result in pair.as_completed(prompts, **keywords, audit=task.audit, observers=[bar]):
        run.summary.add(result)
        if result.audited is not None and result.audited.failed:
            _keep_evidence(result, task, run)
        place = owners[result.index]
        results.setdefault(place, []).append(result)
        open_rows[place] -= 1
        if not open_rows[place]:
            ready = sorted(results.pop(place), key=lambda row: (row.index, row.sequence))
            item, work = batch.items[place], batch.works[place]
            sink.write(item, task.records.done(item, work, ready))
            run.finished += 1


def _keep_evidence(result: Result, task: Task, run: Run) -> None:
    """At once, so that a run that dies later has it too."""
    from draftproof.cli.evidence import keep_evidence

    assert result.audited is not None
    keep_evidence(run.summary.mismatches, run.settings, task.evidence)
    note(
        f"AUDIT FAILED: new token {result.audited.position} is not what the target alone writes "
        f"({result.audited.reason}); evidence in {task.evidence}",
        style="bold red",
    )


def _budgets(works: Sequence[Work]) -> list[int]:
    """The most new tokens of each row."""
    return [
        cast(int, work.options["max_new_tokens"])
        for work in works
        for _ in range(len(work.prompts) * work.n)
    ]
