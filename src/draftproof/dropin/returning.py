"""What `generate` gives back while it runs and at its end, for rows that advance unevenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.hf import decoder_only_output
from draftproof.types import Result, StreamEvent


@dataclass(slots=True)
class Columns:
    """Hands tokens to a transformers streamer as its own loop does: one column of all rows a time.

        row 0   a b c d        put([a, w]), put([b, x]) at once; c waits for row 1 and is
        row 1   w x            put with a pad once row 1 is known to have ended

    streamer: has `put(ids [rows])` and `end()`; None for none
    """

    streamer: Any
    rows: int
    pad: int
    tokens: list[list[int]] = field(init=False)
    ended: list[bool] = field(init=False)
    shown: int = 0

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.rows)]
        self.ended = [False] * self.rows

    def add(self, row: int, event: StreamEvent) -> None:
        """Take in a row's new tokens and put every column that is complete."""
        if self.streamer is None:
            return
        self.tokens[row] += event.token_ids
        self.ended[row] = event.result is not None
        while self._complete():
            column = [ids[self.shown] if self.shown < len(ids) else self.pad for ids in self.tokens]
            self.streamer.put(torch.tensor(column))
            self.shown += 1

    def _complete(self) -> bool:
        lengths = [len(ids) for ids in self.tokens]
        known = all(
            length > self.shown or ended for length, ended in zip(lengths, self.ended, strict=True)
        )
        return known and max(lengths) > self.shown

    def end(self) -> None:
        """Tell the streamer that all rows have ended."""
        if self.streamer is not None:
            self.streamer.end()


def returned(input_ids: Tensor, results: Sequence[Result], pad: int, config: Any) -> Any:
    """[B, L + longest] ids, rows padded with `pad` after their end, or transformers' own object.

    Its `scores` and `logits` are one [B, V] tensor per step. For a row that has ended they say
    "pad, for certain": 0 for the pad id and -inf for the others, so that the transition scores of
    the padding add nothing.
    """
    width = max((len(result.token_ids) for result in results), default=0)
    padded = [result.token_ids + [pad] * (width - len(result.token_ids)) for result in results]
    tail = torch.tensor(padded, dtype=input_ids.dtype, device=input_ids.device)
    sequences = torch.cat([input_ids, tail.reshape(len(results), width)], dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return decoder_only_output(
        sequences=sequences,
        scores=_per_step([result.scores for result in results], width, pad),
        logits=_per_step([result.logits for result in results], width, pad),
    )


def _per_step(rows: Sequence[Tensor | None], width: int, pad: int) -> tuple[Tensor, ...] | None:
    """Values [new tokens, V] of each row -> one [B, V] per step; None when not recorded."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    certain = known[0].new_full((1, known[0].shape[-1]), -torch.inf)
    certain[0, pad] = 0.0
    filled = [torch.cat([row, certain.expand(width - len(row), -1)]) for row in known]
    return tuple(torch.stack(filled, dim=1))
