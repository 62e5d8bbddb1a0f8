"""A smaller model as drafter, with a row-anchored cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.executors.base import Executor
from draftproof.types import Drafts, RaggedTokens


@dataclass(kw_only=True)
class ModelDrafter:
    """Greedy drafts of a draft model. It never reads its context again:

        committed     t t t t t t          the round before was accepted in full
        draft cache   t t t t              lag 2: the last draft and the bonus
        step 1        feed t t -> d1       a row after a partial acceptance feeds one token
        step 2 .. K   feed d1 -> d2 ...    rows that want fewer drop out

    A row that is new, or sat out some rounds, is only further behind: it catches up in chunks of
    `max_num_batched_tokens` and then drafts like the others.

    target_vocab_size: a draft id beyond it is proposed and never accepted (embeddings of the
    two models may be padded differently).
    """

    executor: Executor
    max_num_batched_tokens: int
    name: str = "draft_model"

    def limit(self, row: Row) -> int | None:
        # the row's tokens and all drafts but the last one are fed
        return max(0, self.executor.capacity - len(row.tokens) + 1)

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        active = [index for index, count in enumerate(wanted) if count]
        width = max(wanted, default=0)
        ids = torch.full((len(rows), width), -1, dtype=torch.int64, device=self.executor.device)
        if active:
            self._catch_up([rows[i] for i in active])
            ids[active, 0] = last = self._first([rows[i] for i in active])
        for step in range(1, width):
            stay = [n for n, index in enumerate(active) if wanted[index] > step]
            active = [active[n] for n in stay]
            last = last if len(stay) == len(last) else last[stay]
            ids[active, step] = last = self._next([rows[i] for i in active], last)
        return Drafts(ids=ids, counts=list(wanted))

    def _catch_up(self, rows: Sequence[Row]) -> None:
        """Feed long backlogs in chunks until every row can take its first step in one forward."""
        while sum(self._lag(row) for row in rows) > max(self.max_num_batched_tokens, 2 * len(rows)):
            room, chunk = self.max_num_batched_tokens, []
            for row in rows:
                count = min(self._lag(row) - 1, room)
                room -= count
                if count:
                    chunk.append((row, count))
            self._feed([row for row, _ in chunk], [count for _, count in chunk], keep=0)

    def _first(self, rows: Sequence[Row]) -> Tensor:
        return self._feed(rows, [self._lag(row) for row in rows], keep=1).argmax(-1)

    def _next(self, rows: Sequence[Row], last: Tensor) -> Tensor:
        slots = [row.slot for row in rows]
        ones = [1] * len(rows)
        starts = [self.executor.lengths[slot] for slot in slots]
        tokens = RaggedTokens(ids=last, rows=slots, starts=starts, counts=ones, keep=ones)
        return self.executor.forward(tokens).argmax(-1)

    def _feed(self, rows: Sequence[Row], counts: Sequence[int], keep: int) -> Tensor:
        starts = [self.executor.lengths[row.slot] for row in rows]
        flat = [
            token
            for row, start, count in zip(rows, starts, counts, strict=True)
            for token in row.tokens[start : start + count]
        ]
        ids = torch.tensor(flat, dtype=torch.int64, device=self.executor.device)
        # an id that only the target embeds spoils the draft's guess, not the row
        ids.clamp_(max=self.executor.vocab_size - 1)
        slots, keeps = [row.slot for row in rows], [keep] * len(rows)
        return self.executor.forward(
            RaggedTokens(ids=ids, rows=slots, starts=starts, counts=counts, keep=keeps)
        )

    def _lag(self, row: Row) -> int:
        return len(row.tokens) - self.executor.lengths[row.slot]

    def commit(self, row: Row) -> None:
        length = self.executor.lengths[row.slot]
        self.executor.truncate(row.slot, min(length, len(row.tokens) - 1))

    def release(self, row: Row) -> None:
        self.executor.release(row.slot)
