"""Looking into a run between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from draftproof.api import Pair
from draftproof.batch import Row
from draftproof.engine.engine import Engine
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.executors.memory import CachedRows
from draftproof.testing.oracle import fresh_cache
from draftproof.types import RaggedTokens

T = TypeVar("T")


def prepared(pair: Pair, prompts: Sequence[Any], **options: Any) -> Engine:
    """The engine that `pair.generate(prompts, **options)` would run, with its requests queued."""
    job = pair.prepare(prompts, **options)
    for request in job.requests:
        job.engine.add(request)
    return job.engine


def scored_run(engine: Engine, keep: Callable[[Tensor], T]) -> dict[int, tuple[Row, list[T]]]:
    """Run an engine to its end: of each request its row, and what `keep` made of its logits.

    keep:  called with the logits [V] of every scored token, which later rounds may overwrite

    One entry per new token: of the last time its position was scored, since a rejected draft's
    logits are followed by those of the right token.
    """
    scored: dict[tuple[int, int], T] = {}
    forward = engine.target.forward

    def recording(tokens: RaggedTokens) -> Tensor:
        logits = forward(tokens)
        places = [
            (engine.batch.rows[slot].request.index, position)
            for slot, start, count, kept in zip(
                tokens.rows, tokens.starts, tokens.counts, tokens.keep, strict=True
            )
            for position in range(start + count - kept, start + count)
        ]
        scored.update(zip(places, map(keep, logits), strict=True))
        return logits

    engine.target.forward = recording  # type: ignore[method-assign]
    rows = {c.row.request.index: c.row for commits in engine.run() for c in commits}
    return {
        index: (row, [scored[index, len(row.request.prompt) - 1 + n] for n in range(row.generated)])
        for index, row in sorted(rows.items())
    }


@dataclass
class Recorder:
    """An observer that keeps every round."""

    events: list[RoundEvent] = field(default_factory=list)

    def on_round(self, event: RoundEvent) -> None:
        """Keep the event."""
        self.events.append(event)

    def of(self, index: int) -> list[RowRound]:
        """The rounds of one request."""
        return [row for event in self.events for row in event.rows if row.index == index]


def assert_cache_is_fresh(
    executor: CachedRows, row: int, tokens: Sequence[int], *, atol: float = 1e-5
) -> None:
    """The cached part of a row is what one plain forward over its tokens would have cached.

    atol: float32 sums in another order differ by a few units in the last place
    Raises AssertionError naming the row, layer and first slot that differ.
    """
    first, length = executor.first_slot(row), executor.lengths[row]
    if length > len(tokens):
        raise AssertionError(f"row {row}: {length} tokens cached, {len(tokens)} known")
    if not length:
        return
    for index, fresh in enumerate(fresh_cache(executor.model.model, tokens[:length])):
        kept = executor.cache.keys[index], executor.cache.values[index]
        for name, ours, theirs in zip(("keys", "values"), kept, fresh, strict=True):
            gap = (ours[row, :, first : first + length] - theirs).abs().amax((0, 2))  # [length]
            wrong = torch.nonzero(~(gap <= atol * (1 + theirs.abs().amax((0, 2)))))
            if len(wrong):
                slot = int(wrong[0])
                raise AssertionError(
                    f"row {row}, layer {index}: {name} of slot {slot} of {length} are off by "
                    f"{float(gap[slot]):.2g}"
                )
