"""Which rows run in a round, how many tokens each feeds, and who is admitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.batch import Batch, Request, Row
from draftproof.drafters.base import Drafter
from draftproof.engine.schedule import CONSTANT, Schedule
from draftproof.executors.base import Executor
from draftproof.types import Drafts, RaggedTokens, SpecStats

LEAST_PREFILL = 16  # prompt tokens per round even where decoding rows use the whole budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One round: `fed[i]` known tokens of `rows[i]`, then up to `wanted[i]` draft tokens.

    A row with a prompt left to read feeds a chunk of it (`wanted` 0). `scored[i]` says whether the
    last known token is among the fed ones, so that its logits count.
    """

    rows: Sequence[Row]
    fed: Sequence[int]
    wanted: Sequence[int]

    @property
    def scored(self) -> list[bool]:
        """Whether the row's last known token is fed in this round."""
        return [fed == row.lag for row, fed in zip(self.rows, self.fed, strict=True)]

    @property
    def judged(self) -> list[int]:
        """Indices of the rows that get tokens in this round."""
        return [index for index, scored in enumerate(self.scored) if scored]

    @property
    def reads_prompt(self) -> list[bool]:
        """Whether the row reads a part of its prompt and wants log-probabilities of it."""
        return [
            row.request.settings.prompt_logprobs is not None and row.generated == 0
            for row in self.rows
        ]

    def tokens(self, drafts: Drafts, device: torch.device, vocab_size: int) -> RaggedTokens:
        """Known and draft tokens end to end; drafts never leave the device.

        row a   known k, drafts d d        row b   a chunk of its prompt
        ids     k d d | p p p p p          keep    3, 0
        """
        flat: list[int] = []
        holes: list[int] = []
        for row, fed, drafted in zip(self.rows, self.fed, drafts.counts, strict=True):
            flat += row.tokens[row.kv_len : row.kv_len + fed]
            holes += range(len(flat), len(flat) + drafted)
            flat += [0] * drafted
        ids = torch.tensor(flat, dtype=torch.int64, device=device)
        if holes:
            ids[holes] = _embeddable(drafts.ids[drafts.ids >= 0].to(device), vocab_size)
        counts = [fed + count for fed, count in zip(self.fed, drafts.counts, strict=True)]
        wishes = zip(self.fed, drafts.counts, self.scored, self.reads_prompt, strict=True)
        keep = [fed if whole else (count + 1) * scored for fed, count, scored, whole in wishes]
        slots, starts = [row.slot for row in self.rows], [row.kv_len for row in self.rows]
        return RaggedTokens(ids=ids, rows=slots, starts=starts, counts=counts, keep=keep)


def _embeddable(ids: Tensor, vocab_size: int) -> Tensor:
    """A draft id beyond the target's vocabulary is scored as some token and never accepted."""
    return ids.clamp(max=vocab_size - 1)


@dataclass(kw_only=True)
class Scheduler:
    """First come, first served; decoding rows first, then prompt chunks within the budget.

    num_speculative_tokens: K, the most a row drafts; cut per row by its budget and the contexts
    max_num_batched_tokens: tokens fed to the target per round
    schedule:               how K follows acceptance, and what it costs
    max_kv_tokens:          tokens that all admitted rows may come to need; None: what rows hold
    """

    num_speculative_tokens: int
    max_num_batched_tokens: int
    schedule: Schedule = CONSTANT
    max_kv_tokens: int | None = None
    waiting: deque[Request] = field(default_factory=deque)

    def admit(self, batch: Batch) -> None:
        """Give every free row to the next request."""
        while self.waiting and (slot := batch.free_slot()) is not None:
            if not self._fits(self.waiting[0], batch):
                return
            request = self.waiting.popleft()
            batch.rows[slot] = self._row(slot, request)

    def _fits(self, request: Request, batch: Batch) -> bool:
        """Whether the caches hold this request to its end beside the rows that are running."""
        if self.max_kv_tokens is None or not len(batch):
            return True
        needed = request.most_tokens + sum(row.request.most_tokens for row in batch)
        return needed <= self.max_kv_tokens

    def _row(self, slot: int, request: Request) -> Row:
        stats = SpecStats(num_spec_tokens=self.num_speculative_tokens)
        return Row(slot=slot, request=request, tokens=list(request.prompt), stats=stats)

    def eligible(self, batch: Batch, target: Executor, drafter: Drafter) -> Sequence[Row]:
        """Rows that may take part in this round: all that need not wait for another one."""
        return [row for row in batch if not (row.waits or row.paused)]

    def select(self, batch: Batch, target: Executor, drafter: Drafter) -> Plan:
        """Rows of this round in executor order."""
        rows = self.eligible(batch, target, drafter)
        wanted = self._wanted(rows, target, drafter)
        busy = sum(1 + wanted[row.slot] for row in rows if row.decoding)
        room = max(self.max_num_batched_tokens - busy, LEAST_PREFILL)
        plan: list[tuple[Row, int, int]] = []
        for row in sorted(rows, key=lambda row: row.request.index):
            if row.decoding:
                plan.append((row, 1, wanted[row.slot]))
            elif (fed := min(row.lag, room)) > 0:
                room -= fed
                plan.append((row, fed, 0))
        plan.sort(key=lambda item: item[0].slot)
        return Plan(
            rows=[row for row, _, _ in plan],
            fed=[fed for _, fed, _ in plan],
            wanted=[drafts for _, _, drafts in plan],
        )

    def _wanted(self, rows: Sequence[Row], target: Executor, drafter: Drafter) -> dict[int, int]:
        """K by slot; never the minimum over the batch."""
        decoding = [row for row in rows if row.decoding]
        most = [self._most(row, target, drafter) for row in decoding]
        reading = sum(row.lag for row in rows if not row.decoding)
        room = max(self.max_num_batched_tokens - len(decoding), LEAST_PREFILL)
        chosen = self.schedule.choose(decoding, most, min(reading, room))
        drafts = dict.fromkeys((row.slot for row in rows), 0)
        return drafts | {row.slot: count for row, count in zip(decoding, chosen, strict=True)}

    def _most(self, row: Row, target: Executor, drafter: Drafter) -> int:
        """The most that this row can draft in this round."""
        limits = [
            self.num_speculative_tokens,
            row.budget - 1,  # the last token of the budget is the correction or bonus
            target.capacity - len(row.tokens),
        ]
        own = drafter.limit(row)
        if own is not None:
            limits.append(own)
        return max(0, min(limits))
