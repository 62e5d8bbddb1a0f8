"""Rollback: every row keeps as much as the row that accepted least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from draftproof.batch import Row
from draftproof.types import Drafts, Verdict
from draftproof.verifiers.base import Verifier


@dataclass(frozen=True, kw_only=True)
class ShortestVerifier:
    """Cuts another verifier's judgement to the batch's minimum, so that all rows grow alike.

        accepted   2 0 4    ->    0 0 0        emitted 1 1 1, all of them the target's own tokens

    Correct, since a prefix of what a row would have emitted is; slow, since with acceptance a and
    B rows only the sum over j of a^(B j) tokens of a round survive.
    """

    inner: Verifier

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        verdict = self.inner.judge(logits, rows, drafts)
        if not rows:
            return verdict
        shortest = verdict.accepted.min().expand_as(verdict.accepted)
        return replace(verdict, accepted=shortest)
