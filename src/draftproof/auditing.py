"""The proof, running in production: some finished requests are decoded again, plain and alone."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import torch
from torch import Tensor

from draftproof.batch import Request, Row
from draftproof.engine.engine import Engine
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.errors import InputError
from draftproof.near_ties import band_of
from draftproof.processing import Draw, exponential, position_key
from draftproof.sampling import Settings
from draftproof.types import Audit, AuditOutcome

ONE = 1 << 64


def checked_share(share: object) -> float:
    """The share of requests to audit. Raises InputError unless it lies between 0 and 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise InputError(f"audit must be a share between 0 and 1, got {share!r}")
    return float(share)


def chosen(request: Request, share: float) -> bool:
    """Whether a request is audited: by what it asks, so the same ones in every run and order."""
    digest = blake2b(digest_size=8, person=b"audit")
    settings = request.settings
    seed = settings.seed if settings.sampled else 0
    digest.update(f"{request.sequence}/{seed}/{settings.max_new_tokens}/".encode())
    digest.update(array("q", request.prompt).tobytes())
    return int.from_bytes(digest.digest(), "little") < share * ONE


@dataclass(kw_only=True)
class Auditor:
    """Decodes chosen requests again without drafts, neighbours and copied prefixes, and compares.

    share:     of the requests, 0 to 1
    engine:    plain, for one row
    numerics:  of the run; exact: the bits of the logits are compared as well
    dtype:     of the target, which says how near a tie is in fast numerics

    It observes the rounds of the run, so that a mismatch comes with its row's transcript.
    """

    share: float
    engine: Engine
    numerics: str
    dtype: str
    _twins: dict[int, Request | str] = field(default_factory=dict, init=False)
    _rounds: dict[int, list[RowRound]] = field(default_factory=dict, init=False)

    def watch(self, request: Request) -> Request:
        """The request as it is to be run; what is chosen records the bits of its logits."""
        if not chosen(request, self.share):
            return request
        self._rounds[request.index] = []
        twin = _twin(request)
        self._twins[request.index] = twin
        if isinstance(twin, str) or self.numerics != "exact":
            return request
        return replace(request, settings=replace(request.settings, output_checksums=True))

    def on_round(self, event: RoundEvent) -> None:
        """Keep the rounds of the rows that will be audited."""
        for row in event.rows:
            if row.index in self._rounds:
                self._rounds[row.index].append(row)

    def check(self, row: Row) -> Audit | None:
        """Decode a finished row again and compare; None for a row that was not chosen."""
        twin = self._twins.pop(row.request.index, None)
        rounds = tuple(self._rounds.pop(row.request.index, ()))
        if twin is None:
            return None
        if isinstance(twin, str):
            return Audit(outcome=AuditOutcome.NOT_AUDITABLE, reason=twin)
        audit = self._compare(row, twin)
        keeps = audit.outcome in (AuditOutcome.DIFFERENT, AuditOutcome.NEAR_TIE)
        return replace(audit, rounds=rounds) if keeps else audit

    def _compare(self, row: Row, twin: Request) -> Audit:
        exact = self.numerics == "exact"
        own_end = bool(row.request.settings.stopping_criteria)
        if own_end:  # where a caller's own criteria end a row is their business, its tokens are not
            length = min(row.generated, twin.settings.max_new_tokens)
            twin = replace(twin, settings=replace(twin.settings, max_new_tokens=length))
        self.engine.add(twin)
        rounds, plain = self.engine.run(), None
        try:
            for commits in rounds:
                plain = commits[0].row
                position = _first_difference(row.emitted, plain)
                if position is not None:
                    return self._judge(row, plain, position)
        finally:
            rounds.close()  # type: ignore[attr-defined]
        assert plain is not None
        another_end = plain.finish_reason != row.finish_reason and not own_end
        if plain.generated != row.generated or another_end:
            return _different(min(plain.generated, row.generated), plain, "another end")
        place = _first_bits(row.outputs.checksums, plain.outputs.checksums) if exact else None
        if place is not None:
            return _different(place, plain, "other bits in the logits")
        return Audit(outcome=AuditOutcome.EQUAL)

    def _judge(self, row: Row, plain: Row, position: int) -> Audit:
        """Another token: a fault, or in fast 16-bit numerics perhaps a near tie."""
        if position >= row.generated:
            return _different(position, plain, "ended too early")
        if self.numerics == "exact" or band_of(self.dtype, 1.0) == 0:
            return _different(position, plain, "another token")
        scores = plain.outputs.scores[-1][-1]  # [V], of the round that emitted the plain token
        ours, other = plain.emitted[position], row.emitted[position]
        gap = _gap(scores, ours, other, plain.request, position)
        band = band_of(self.dtype, float(scores[ours].abs()))
        if gap <= band:
            reason = f"the tokens are {gap:.3g} apart, near a tie in fast {self.dtype}"
            near = _different(position, plain, reason)
            return replace(near, outcome=AuditOutcome.NEAR_TIE)
        reason = f"another token, {gap:.3g} behind: no near tie in {self.dtype}"
        return _different(position, plain, reason)


def _twin(request: Request) -> Request | str:
    """The same request for the plain run, or why there can be none."""
    settings = request.settings
    if settings.drawn_from_draft:
        return "rejection sampling promises a distribution, not tokens; give a seed"
    try:
        processors = tuple(copy.deepcopy(item) for item in settings.logits_processor)
    except Exception as error:
        return f"a processor cannot be copied: {error}"
    plain = replace(
        settings,
        logits_processor=processors,
        stopping_criteria=(),  # they may ask a clock, see `_compare`
        logprobs=None,
        prompt_logprobs=None,
        output_logits=False,
        output_scores=True,
        output_checksums=True,
    )
    return replace(request, settings=plain)


def _first_difference(found: Sequence[int], plain: Row) -> int | None:
    """Position of a new plain token that the row does not have; drops scores no longer needed."""
    if len(plain.outputs.scores) > 1:
        del plain.outputs.scores[:-1]
    for position in range(max(0, plain.generated - 1), plain.generated):
        if position >= len(found) or plain.emitted[position] != found[position]:
            return position
    return None


def _first_bits(found: Sequence[Tensor], plain: Sequence[Tensor]) -> int | None:
    """First position at which the checksums [n] int64 differ."""
    ours, theirs = torch.cat([*found]), torch.cat([*plain])
    wrong = (ours != theirs).nonzero()
    return int(wrong[0]) if len(wrong) else None


def _gap(scores: Tensor, ours: int, other: int, request: Request, position: int) -> float:
    """How far the other token is behind, in logits; for a sampled row, in its race."""
    settings: Settings = request.settings
    if settings.sampled:
        key = position_key(request.stream, position, Draw.CHOICE)
        times = exponential([key], scores.shape[-1], scores.device)[0]
        scores = (scores.log_softmax(-1) - times.log()) * settings.temperature
    gap = float(scores[ours] - scores[other])
    return gap if gap == gap else float("inf")


def _different(position: int, plain: Row, reason: str) -> Audit:
    return Audit(
        outcome=AuditOutcome.DIFFERENT,
        position=position,
        reason=reason,
        prompt=tuple(plain.request.prompt),
        expected=tuple(plain.emitted),
    )


Check = Callable[[Row], Audit | None]
