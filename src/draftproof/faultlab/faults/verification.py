"""Faults of the verifier: wrappers that change what it is told or what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.drafters.none import NoDrafter
from draftproof.engine.engine import Engine
from draftproof.forensics.subjects.base import Inquiry
from draftproof.types import Drafts, Verdict
from draftproof.verifiers.base import Verifier

Before = Callable[[Tensor, Sequence[Row], Drafts], Tensor]
After = Callable[[Verdict, Drafts], Verdict]


@dataclass(frozen=True, kw_only=True)
class FaultyVerifier:
    """A verifier with something done to its logits before, or to its verdict after."""

    inner: Verifier
    before: Before = lambda logits, rows, drafts: logits
    after: After = lambda verdict, drafts: verdict

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        """logits: [sum(K + 1), V]."""
        verdict = self.inner.judge(self.before(logits, rows, drafts), rows, drafts)
        return self.after(verdict, drafts)


def verifying(
    *, before: Before | None = None, after: After | None = None
) -> Callable[[Engine, Inquiry], Engine]:
    """A fault of the verifier."""
    changes = {
        name: change
        for name, change in (("before", before), ("after", after))
        if change is not None
    }

    def rig(engine: Engine, inquiry: Inquiry) -> Engine:
        engine.verifier = FaultyVerifier(inner=engine.verifier, **changes)  # type: ignore[arg-type]
        return engine

    return rig


def correction_from_draft(verdict: Verdict, drafts: Drafts) -> Verdict:
    """At the first mismatch the draft's token is emitted instead of the target's."""
    tokens = verdict.tokens.clone()  # [R, K_max + 1]
    for row, (count, accepted) in enumerate(
        zip(drafts.counts, verdict.accepted.tolist(), strict=True)
    ):
        if accepted < count:
            tokens[row, accepted] = drafts.ids[row, accepted]
    return Verdict(accepted=verdict.accepted, tokens=tokens)


def first_unverified(verdict: Verdict, drafts: Drafts) -> Verdict:
    """The first draft token of every block is taken as it is."""
    if not any(drafts.counts):
        return verdict
    tokens = verdict.tokens.clone()
    given = torch.tensor(drafts.counts, device=tokens.device) > 0
    tokens[given, 0] = drafts.ids.to(tokens.device)[given, 0]
    match = drafts.ids.to(tokens.device) == tokens[:, :-1]
    return Verdict(accepted=match.to(torch.int64).cumprod(1).sum(1), tokens=tokens)


def first_two_rows_swapped(verdict: Verdict, drafts: Drafts) -> Verdict:
    """The verdicts of the first two rows that are judged change places."""
    if len(drafts.counts) < 2 or drafts.counts[0] != drafts.counts[1]:
        return verdict
    order = [1, 0, *range(2, len(drafts.counts))]
    return Verdict(accepted=verdict.accepted[order], tokens=verdict.tokens[order])


def last_of_ties(logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Tensor:
    """Of equal logits the last one counts, not the first."""
    best = logits == logits.max(-1, keepdim=True).values  # [N, V]
    last = best & (best.flip(-1).cumsum(-1).flip(-1) == 1)
    return logits.masked_fill(best & ~last, -torch.inf)


def minimum_by_block(logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Tensor:
    """`min_new_tokens` forbids eos in a whole block that begins too early."""
    logits, start = logits.clone(), 0
    for row, count in zip(rows, drafts.counts, strict=True):
        settings = row.request.settings
        if row.generated < settings.min_new_tokens:
            logits[start : start + count + 1, list(settings.eos_token_id)] = -torch.inf
        start += count + 1
    return logits


def speculation_off(engine: Engine, inquiry: Inquiry) -> Engine:
    """The drafter is replaced by nothing, and nobody is told."""
    engine.drafter = NoDrafter()
    return engine
