"""The loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.batch import Batch, Request, Row
from draftproof.drafters.base import Drafter
from draftproof.engine.events import Observer, RoundEvent, RowRound
from draftproof.engine.outputs import Evidence, evidence_of, record, split_prompts
from draftproof.engine.scheduler import Plan, Scheduler
from draftproof.engine.stopping import Cut, Decode, cut
from draftproof.errors import InvariantError, NumericsError
from draftproof.executors.base import Executor
from draftproof.phases import UNTIMED, Phase, RoundTimer
from draftproof.prefixes import Prefixes
from draftproof.processing import BROKEN
from draftproof.types import Drafts, Verdict
from draftproof.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class Commit:
    """What a round gave one row."""

    row: Row
    emitted: list[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the verifier said of one row, on the host."""

    accepted: int
    choices: list[int]  # the target's own token after each scored position, [K + 1]
    drafts: list[int]  # [K]

    @property
    def offered(self) -> list[int]:
        """The accepted drafts and the correction or bonus."""
        return self.choices[: self.accepted + 1]


NOTHING = Outcome(0, [], [])  # a row that only read a part of its prompt


@dataclass(kw_only=True)
class Engine:
    """Decodes requests through at most `batch.max_num_seqs` rows until none is left.

    decode:  token ids to text, needed for stop strings only
    prefixes: copies what prompts have in common; None: every row reads its own
    debug:   check the invariants every round, with stale slots poisoned
    timer:   told of the phases of every round
    """

    target: Executor
    drafter: Drafter
    verifier: Verifier
    scheduler: Scheduler
    batch: Batch
    decode: Decode | None = None
    prefixes: Prefixes | None = None
    observers: Sequence[Observer] = ()
    debug: bool = False
    timer: RoundTimer = UNTIMED
    rounds: int = field(default=0, init=False)

    def add(self, request: Request) -> None:
        """Queue a request; it is admitted when a row is free."""
        self.scheduler.waiting.append(request)

    def run(self) -> Iterator[list[Commit]]:
        """Round after round until every request is finished; rows are freed on any exit."""
        try:
            while self.scheduler.waiting or self.batch.rows:
                yield self.step()
        finally:
            for row in list(self.batch):
                self._release(row)

    def abort(self, index: int) -> bool:
        """Take a request back, waiting or running; its row is free in the next round.

        Returns whether it was there. Only between two rounds.
        """
        for request in self.scheduler.waiting:
            if request.index == index:
                self.scheduler.waiting.remove(request)
                return True
        for row in list(self.batch):
            if row.request.index == index:
                self._release(row)
                return True
        return False

    def restore(self) -> None:
        """After a `step` that raised: forget what it fed, so that the rows can run again."""
        for row in self.batch:
            self.target.truncate(row.slot, min(row.kv_len, self.target.lengths[row.slot]))
            row.kv_len = self.target.lengths[row.slot]
            self.drafter.commit(row)

    def step(self) -> list[Commit]:
        """One round: admit, select, propose, score, judge, commit, emit."""
        self.scheduler.admit(self.batch)
        if self.prefixes is not None:
            share(self.prefixes, self.batch)
        plan = self.scheduler.select(self.batch, self.target, self.drafter)
        self.timer.enter(Phase.HOST, 1 + sum(plan.wanted))
        drafts = self.drafter.propose(plan.rows, plan.wanted)
        tokens = plan.tokens(drafts, self.target.device, self.target.vocab_size)
        self.timer.enter(Phase.VERIFY, len(tokens.ids))
        logits = split_prompts(plan, tokens, drafts, self.target.forward(tokens))
        judged = drafts.select(plan.judged)
        verdict = self.verifier.judge(logits, [plan.rows[i] for i in plan.judged], judged)
        evidence = evidence_of(plan, judged, logits, verdict.scores)
        outcomes = _to_host(plan, verdict, judged)
        if outcomes:  # otherwise nothing was read, and the device may still be at work
            self.timer.finish()
        return self._commit(plan, outcomes, evidence)

    def _commit(
        self, plan: Plan, outcomes: dict[int, Outcome], evidence: Mapping[int, Evidence]
    ) -> list[Commit]:
        commits, events = [], []
        for index, row in enumerate(plan.rows):
            outcome, kv_len = outcomes.get(index, NOTHING), row.kv_len
            kept = self._apply(row, plan.fed[index], outcome)
            if index in evidence:
                record(row, kept, *evidence[index])
            commits.append(Commit(row, kept))
            if self.observers:
                events.append(_describe(row, kv_len, plan.fed[index], outcome, kept))
        self._after(events)
        return commits

    def _apply(self, row: Row, fed: int, outcome: Outcome) -> list[int]:
        """Advance one row: append what is emitted, shorten both caches to what is true."""
        kept = outcome.offered
        if BROKEN in kept:
            raise_broken(row, row.generated + kept.index(BROKEN))
        if kept:
            decision = self._cut(row, kept)
            kept, row.finish_reason = kept[: decision.count], decision.reason
            if row.generated:  # the token that ends the prefill belongs to no speculative round
                row.stats.record(
                    drafted=len(outcome.drafts), accepted=outcome.accepted, kept=len(kept)
                )
        row.kv_len += fed + max(0, len(kept) - 1)
        row.tokens += kept
        if row.finish_reason is not None:
            self._release(row)
        elif kept:
            self.target.truncate(row.slot, row.kv_len)
            self.drafter.commit(row)
        return kept

    def _cut(self, row: Row, offered: Sequence[int]) -> Cut:
        # a row's last token is never cached, so capacity + 1 tokens fit
        return cut(row, offered, self.decode, self.target.capacity + 1 - len(row.tokens))

    def _release(self, row: Row) -> None:
        self.target.release(row.slot)
        self.drafter.release(row)
        self.batch.rows.pop(row.slot, None)

    def _after(self, events: list[RowRound]) -> None:
        self.rounds += 1
        if self.debug:
            self.check()
        if self.observers:
            waiting = len(self.scheduler.waiting)
            event = RoundEvent(number=self.rounds, rows=tuple(events), waiting=waiting)
            for observer in self.observers:
                observer.on_round(event)

    def check(self) -> None:
        """Every invariant, now; stale slots are poisoned so that a wrong mask shows at once."""
        self.batch.check()
        for row in self.batch:
            if self.target.lengths[row.slot] != row.kv_len:
                found = self.target.lengths[row.slot]
                raise InvariantError(f"row {row.slot}: cached {found}, expected {row.kv_len}")
        for executor in (self.target, getattr(self.drafter, "executor", None)):
            if executor is not None:
                executor.check()
                executor.poison()


def raise_broken(row: Row, position: int) -> None:
    """Raise NumericsError: there is no token to choose."""
    request = row.request
    settings = request.settings
    cause = (
        "a logits processor or constraint may forbid every token"
        if settings.processed
        else ("the model's weights or the number format may overflow")
    )
    raise NumericsError(
        f"prompt {request.origin}: all scores of new token {position} are -inf, or one is NaN: no "
        f"token can be chosen; {cause}"
    )


def share(prefixes: Prefixes, batch: Batch) -> None:
    """Copy for the rows that have read nothing yet, and let them wait where it pays."""
    for row in sorted(batch, key=lambda row: row.request.index):
        row.waits = False
        if row.kv_len == row.generated == 0 and row.request.settings.prompt_logprobs is None:
            row.waits = prefixes.waits(row, (other for other in batch if not other.generated))
            if not row.waits:
                row.kv_len = row.num_cached_tokens = prefixes.copy(row)


def _to_host(plan: Plan, verdict: Verdict, drafts: Drafts) -> dict[int, Outcome]:
    """The round's one device-to-host read: accepted counts, the target's tokens, the drafts."""
    device, width = verdict.tokens.device, drafts.ids.shape[1]
    parts = [verdict.accepted[:, None], verdict.tokens, drafts.ids.to(device)]
    table = torch.cat(parts, dim=1).tolist()  # [R, 1 + (K_max + 1) + K_max]
    return {
        index: Outcome(line[0], line[1 : count + 2], line[width + 2 : width + 2 + count])
        for index, count, line in zip(plan.judged, drafts.counts, table, strict=True)
    }


def _describe(row: Row, kv_len: int, fed: int, outcome: Outcome, kept: list[int]) -> RowRound:
    return RowRound(
        index=row.request.index,
        slot=row.slot,
        kv_len=kv_len,
        fed=fed + len(outcome.drafts),
        drafts=tuple(outcome.drafts),
        target_ids=tuple(outcome.choices),
        accepted=outcome.accepted,
        emitted=tuple(kept),
        finish_reason=row.finish_reason,
    )
