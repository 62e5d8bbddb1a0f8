"""Decode items into a sink; a line that cannot be used is reported and recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.cli import loading
from draftproof.cli.console import note
from draftproof.cli.encoding import encode_items
from draftproof.cli.inputs import Item
from draftproof.cli.options import DecodingOptions, ModelOptions
from draftproof.cli.progress import Meter, ProgressBar
from draftproof.cli.sinks import Sink, done_record, failed_record
from draftproof.cli.summary import Summary

if TYPE_CHECKING:
    from draftproof.api import Pair


@dataclass(kw_only=True, slots=True)
class Run:
    """What is known of a run at any time, also when it is interrupted.

    failed:    lines that cannot be used, those of an earlier run included
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


def decode_into(
    sink: Sink, items: Sequence[Item], models: ModelOptions, decoding: DecodingOptions, run: Run
) -> None:
    """Do all that the sink does not hold yet; the models are loaded only if there is any."""
    run.finished, run.failed = len(sink.done), len(sink.failed)
    todo = [item for item in items if item.index not in sink.done]
    if any(item.error is None for item in todo):
        pair = loading.open_pair(models)
        run.settings = pair.describe() | decoding.report()
        todo = encode_items(pair, todo)
    sink.open()
    _report([item for item in todo if item.error is not None], sink, run)
    if good := [item for item in todo if item.error is None]:
        _decode(pair, good, decoding, sink, run)


def _report(bad: Sequence[Item], sink: Sink, run: Run) -> None:
    for item in bad:
        note(f"{item.source}: {item.error}", style="red")
        sink.write(failed_record(item))
        run.failed += 1
        run.finished += 1


def _decode(
    pair: Pair, items: Sequence[Item], decoding: DecodingOptions, sink: Sink, run: Run
) -> None:
    limits = [item.max_new_tokens for item in items]
    meter = Meter([decoding.max_new_tokens if n is None else n for n in limits])
    prompts = [item.ids or [] for item in items]
    started = time.perf_counter()
    try:
        with ProgressBar(meter) as bar:
            keywords = decoding.keywords(limits)
            for result in pair.as_completed(prompts, **keywords, observers=[bar]):
                sink.write(done_record(items[result.index], result))
                run.summary.add(result)
                run.finished += 1
    finally:
        run.summary.seconds = time.perf_counter() - started
