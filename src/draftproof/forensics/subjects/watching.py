"""Parts put around an engine's own, to watch it; none changes a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.forensics.subjects.base import TOP, Top
from draftproof.types import Drafts, RaggedTokens, Verdict
from draftproof.verifiers.base import Verifier


def tops_of(logits: Tensor, *, are_logits: bool = True) -> list[Top]:
    """The likeliest tokens of each line of [N, V] logits, best first; of ties the lowest id."""
    values, ids = torch.sort(logits.float(), dim=-1, descending=True, stable=True)
    return [
        Top(ids=tuple(line), values=tuple(scores), logits=are_logits)
        for line, scores in zip(ids[:, :TOP].tolist(), values[:, :TOP].tolist(), strict=True)
    ]


@dataclass(kw_only=True)
class TopsVerifier:
    """The verifier inside, and the likeliest tokens of everything it scored.

    tops: by request, then by index of the generated token; a later round overwrites what an
    earlier one scored after a rejected draft
    """

    inner: Verifier
    tops: dict[int, dict[int, Top]] = field(default_factory=dict)

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        """logits: [sum(K + 1), V]."""
        lines, start = tops_of(logits), 0
        for row, count in zip(rows, drafts.counts, strict=True):
            own = self.tops.setdefault(row.request.index, {})
            own.update(enumerate(lines[start : start + count + 1], start=row.generated))
            start += count + 1
        return self.inner.judge(logits, rows, drafts)

    def of(self, index: int, count: int) -> tuple[Top, ...]:
        """Of the `count` tokens a request emitted."""
        own = self.tops.get(index, {})
        return tuple(own[n] for n in range(count) if n in own)


@dataclass(kw_only=True)
class Transcript:
    """An observer that keeps what every round did to every row that got tokens."""

    rounds: dict[int, list[RowRound]] = field(default_factory=dict)

    def on_round(self, event: RoundEvent) -> None:
        """Called by the engine."""
        for row in event.rows:
            if row.emitted or row.drafts:
                self.rounds.setdefault(row.index, []).append(row)

    def of(self, index: int) -> tuple[RowRound, ...]:
        """One request's rounds."""
        return tuple(self.rounds.get(index, ()))


@dataclass
class SerialExecutor:
    """Feeds a scored block token by token: the shapes of plain decoding, the tokens of a block."""

    inner: Any  # an Executor; everything but `forward` is its own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """As Executor.forward: kept logits in row order, [sum(keep), V]."""
        widest = max(tokens.keep, default=0)
        if widest <= 1:
            return self._whole(tokens)
        ends = [sum(tokens.counts[: i + 1]) for i in range(len(tokens.counts))]
        kept: dict[tuple[int, int], Tensor] = {}
        for step in range(widest):
            part, rows = _step(tokens, ends, step)
            lines = iter(self._whole(part))
            kept.update({(row, step): next(lines) for row in rows})
        return torch.stack([kept[key] for key in sorted(kept)])

    def _whole(self, tokens: RaggedTokens) -> Tensor:
        logits: Tensor = self.inner.forward(tokens)
        return logits


def _step(tokens: RaggedTokens, ends: Sequence[int], step: int) -> tuple[RaggedTokens, list[int]]:
    """Step 0 feeds all up to a row's first kept token, each later step one token more."""
    picked: list[tuple[int, int, int]] = []  # row index, first and last flat index
    for row, (count, keep) in enumerate(zip(tokens.counts, tokens.keep, strict=True)):
        first_kept = ends[row] - keep + step
        if step == 0:
            picked.append((row, ends[row] - count, min(first_kept + 1, ends[row])))
        elif step < keep:
            picked.append((row, first_kept, first_kept + 1))
    part = RaggedTokens(
        ids=torch.cat([tokens.ids[low:high] for _, low, high in picked]),
        rows=[tokens.rows[row] for row, _, _ in picked],
        starts=[
            tokens.starts[row] + low - (ends[row] - tokens.counts[row]) for row, low, _ in picked
        ],
        counts=[high - low for _, low, high in picked],
        keep=[min(1, tokens.keep[row]) for row, _, _ in picked],
    )
    return part, [row for row, _, _ in picked if tokens.keep[row]]
