"""A smaller model as drafter, with a row-anchored cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.executors.base import Executor
from draftproof.phases import UNTIMED, Phase, RoundTimer
from draftproof.prefixes import Prefixes
from draftproof.processing import PENALTIES, WARPERS, Positions, align, best, choose, run
from draftproof.types import Drafts, RaggedTokens


@dataclass(slots=True)
class _Sheet:
    """The drafts of one round while they are written, and who still drafts.

    ids:            [R, K_max] int64, -1 where nothing is written
    probabilities:  [R, K_max, V] float32 once a row under rejection sampling has drafted
    active:         rows that draft another token, as indices into `rows`
    """

    rows: Sequence[Row]
    ids: Tensor
    counts: list[int]
    active: list[int]
    probabilities: Tensor | None = None

    @classmethod
    def blank(cls, rows: Sequence[Row], wanted: Sequence[int], device: torch.device) -> _Sheet:
        ids = torch.full((len(rows), max(wanted, default=0)), -1, device=device)
        return cls(rows, ids, [0] * len(rows), [i for i, count in enumerate(wanted) if count])

    @property
    def shaped(self) -> bool:
        """Whether some active row wants more than the argmax."""
        return not all(self.rows[index].request.settings.plain for index in self.active)

    @property
    def positions(self) -> Positions:
        """Where the active rows draft next."""
        offset = [self.counts[index] for index in self.active]
        return Positions(rows=self.rows, drafts=self.ids, owner=self.active, offset=offset)

    def write(self, step: int, tokens: Tensor) -> None:
        """One draft token for every active row, [n]."""
        self.ids[self.active, step] = tokens
        for index in self.active:
            self.counts[index] += 1

    def remember(self, step: int, scores: Tensor) -> None:
        """Keep what the drafts of this step were drawn from, scores [n, V]."""
        if self.probabilities is None:
            shape = (*self.ids.shape, scores.shape[-1])
            self.probabilities = torch.zeros(shape, dtype=torch.float32, device=scores.device)
        self.probabilities[self.active, step] = scores.softmax(-1)


@dataclass(kw_only=True)
class ModelDrafter:
    """Drafts of a draft model. It never reads its context again:

        committed     t t t t t t          the round before was accepted in full
        draft cache   t t t t              lag 2: the last draft and the bonus
        step 1        feed t t -> d1       a row after a partial acceptance feeds one token
        step 2 .. K   feed d1 -> d2 ...    rows that want fewer drop out

    A row that is new, or sat out some rounds, is only further behind: it catches up in chunks of
    `max_num_batched_tokens` and then drafts like the others.

    Drafts are chosen as the row's settings say: penalties and warpers act on the draft's logits as
    they will on the target's. A request's own processors do not; they are called for the target's
    positions only.

    vocab_size:            the target's; draft logits are cut or filled up to it
    confidence_threshold:  a row stops drafting after a token less probable than this; 0: never.
                           One device-to-host read per draft step
    prefixes:              copies what rows begin with in common; None: every row reads its own
    """

    executor: Executor
    max_num_batched_tokens: int
    vocab_size: int
    confidence_threshold: float = 0.0
    prefixes: Prefixes | None = None
    name: str = "draft_model"
    timer: RoundTimer = UNTIMED

    def limit(self, row: Row) -> int | None:
        # the row's tokens and all drafts but the last one are fed
        return max(0, self.executor.capacity - len(row.tokens) + 1)

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> Drafts:
        sheet = _Sheet.blank(rows, wanted, self.executor.device)
        if sheet.active:
            self._share([rows[index] for index in sheet.active])
            self._catch_up([rows[index] for index in sheet.active])
        for step in range(max(wanted, default=0)):
            sheet.active = [index for index in sheet.active if wanted[index] > step]
            if sheet.active:
                self._step(sheet, step)
        return Drafts(ids=sheet.ids, counts=sheet.counts, probabilities=sheet.probabilities)

    def _step(self, sheet: _Sheet, step: int) -> None:
        rows = [sheet.rows[index] for index in sheet.active]
        if step == 0:
            logits = self._first(rows)
        else:
            logits = self._next(rows, sheet.ids[sheet.active, step - 1])
        if sheet.shaped:
            logits = run((*PENALTIES, *WARPERS), align(logits, self.vocab_size), sheet.positions)
            tokens = choose(logits, sheet.positions, drafting=True)
        else:
            tokens = best(logits)
        # a draft without a best token is any token: at worst it is rejected
        sheet.write(step, tokens.clamp(min=0))
        if any(row.request.settings.drawn_from_draft for row in rows):
            sheet.remember(step, logits)
        if self.confidence_threshold > 0:
            confident = self._confident(logits, tokens)
            sheet.active = [i for i, goes in zip(sheet.active, confident, strict=True) if goes]

    def _confident(self, scores: Tensor, tokens: Tensor) -> list[bool]:
        probable = scores.softmax(-1, dtype=torch.float32).gather(1, tokens[:, None])[:, 0]
        confident: list[bool] = (probable >= self.confidence_threshold).tolist()
        return confident

    def _share(self, rows: Sequence[Row]) -> None:
        """Copy for rows that have read nothing; of those that begin alike, one reads first."""
        new = [row for row in rows if not self.executor.lengths[row.slot]]
        new.sort(key=lambda row: row.request.index)
        while self.prefixes is not None and new:
            late = [row for row in new if self.prefixes.waits(row, new)]
            first = [row for row in new if row not in late]
            for row in first:
                self.prefixes.copy(row)
            if late:
                self._catch_up(first, most=len(first))
            new = late

    def _catch_up(self, rows: Sequence[Row], most: int = 0) -> None:
        """Feed long backlogs in chunks until every row can take its first step in one forward.

        most: tokens that may be left to feed; 0: as many as one forward takes
        """
        most = most or max(self.max_num_batched_tokens, 2 * len(rows))
        while sum(self.lag(row) for row in rows) > most:
            room, chunk = self.max_num_batched_tokens, []
            for row in rows:
                count = min(self.lag(row) - 1, room)
                room -= count
                if count:
                    chunk.append((row, count))
            self._feed([row for row, _ in chunk], [count for _, count in chunk], keep=0)

    def _first(self, rows: Sequence[Row]) -> Tensor:
        return self._feed(rows, [self.lag(row) for row in rows], keep=1)

    def _next(self, rows: Sequence[Row], last: Tensor) -> Tensor:
        slots = [row.slot for row in rows]
        ones = [1] * len(rows)
        starts = [self.executor.lengths[slot] for slot in slots]
        tokens = RaggedTokens(
            ids=self._embeddable(last), rows=slots, starts=starts, counts=ones, keep=ones
        )
        return self._forward(tokens)

    def _feed(self, rows: Sequence[Row], counts: Sequence[int], keep: int) -> Tensor:
        starts = [self.executor.lengths[row.slot] for row in rows]
        flat = [
            token
            for row, start, count in zip(rows, starts, counts, strict=True)
            for token in row.tokens[start : start + count]
        ]
        ids = self._embeddable(torch.tensor(flat, dtype=torch.int64, device=self.executor.device))
        slots, keeps = [row.slot for row in rows], [keep] * len(rows)
        return self._forward(
            RaggedTokens(ids=ids, rows=slots, starts=starts, counts=counts, keep=keeps)
        )

    def _forward(self, tokens: RaggedTokens) -> Tensor:
        self.timer.enter(Phase.DRAFT, len(tokens.ids))
        return self.executor.forward(tokens)

    def _embeddable(self, ids: Tensor) -> Tensor:
        """A token that only the target has is read as another one; at worst a draft is rejected."""
        return ids.clamp(max=self.executor.vocab_size - 1)

    def lag(self, row: Row) -> int:
        return len(row.tokens) - self.executor.lengths[row.slot]

    def commit(self, row: Row) -> None:
        length = self.executor.lengths[row.slot]
        self.executor.truncate(row.slot, min(length, len(row.tokens) - 1))

    def release(self, row: Row) -> None:
        self.executor.release(row.slot)
