"""The values that cross between rooms: flat ragged tokens, drafts, verdicts, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class FinishReason(StrEnum):
    """Why a row ended; the earliest cause wins."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, kw_only=True, slots=True)
class RaggedTokens:
    """Tokens of several rows, laid end to end, to be fed to an executor.

        rows   = [0, 2, 5]          executor rows, ascending, each once
        starts = [7, 0, 31]         position of the first token fed == the row's KV length
        counts = [2, 4, 1]          tokens fed per row
        keep   = [2, 0, 1]          how many of a row's LAST tokens need logits
        ids    = [a a | b b b b | c]                                                # [N] int64

    A row behind by a whole prompt and a row behind by one token are the same thing with another
    count, so prefill is no phase of its own.
    """

    ids: Tensor
    rows: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    keep: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.ids) != sum(self.counts):
            raise ValueError(f"{len(self.ids)} ids for counts that sum to {sum(self.counts)}")
        if any(a >= b for a, b in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError(f"rows must ascend, got {list(self.rows)}")

    @property
    def kept_indices(self) -> list[int]:
        """Flat index of every token whose logits are wanted, in row order."""
        ends = accumulate(self.counts)
        return [
            i for end, keep in zip(ends, self.keep, strict=True) for i in range(end - keep, end)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafts:
    """Draft tokens of one round.

    ids:            [R, K_max] int64, -1 beyond a row's own `counts[r]`
    probabilities:  [R, K_max, V] float32, what each draft of a row under rejection sampling was
                    drawn from (anything in other rows); None: the drafts are no random draws
    """

    ids: Tensor
    counts: Sequence[int]
    probabilities: Tensor | None = None

    def select(self, indices: Sequence[int]) -> Drafts:
        """The drafts of some rows."""
        if len(indices) == len(self.counts):
            return self
        picked, counts = list(indices), [self.counts[index] for index in indices]
        q = None if self.probabilities is None else self.probabilities[picked]
        return Drafts(ids=self.ids[picked], counts=counts, probabilities=q)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verifier's judgement of one round, still on the device.

    accepted: [R] int64, length of the accepted draft prefix
    tokens:   [R, K_max + 1] int64, the target's own token after each fed token; the first
              `accepted[r] + 1` of row r are emitted
    scores:   [sum(K + 1), V] float32, the processed scores of the emitted positions, row after
              row; None where they are the logits
    """

    accepted: Tensor
    tokens: Tensor
    scores: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopLogprobs:
    """Log-probabilities at n positions, on the device of the logits.

    chosen:  [n] float32, of the token that stands there
    rank:    [n] int64, 1 for the most probable token
    ids, values: [n, top] int64 and float32, the most probable tokens, best first
    """

    chosen: Tensor
    rank: Tensor
    ids: Tensor
    values: Tensor


@dataclass(kw_only=True, slots=True)
class Outputs:
    """What a row records besides its tokens, a piece per round, in order; left on the device.

    scores, logits:   [n, V] float32 per piece
    logprobs:         of the emitted tokens
    prompt_logprobs:  of the prompt's tokens but the first
    checksums:        [n] int64 per piece, of the raw logits' bits
    """

    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    logprobs: list[TopLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TopLogprobs] = field(default_factory=list)
    checksums: list[Tensor] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class SpecStats:
    """Counters of one request; integers only, every rate is a property defined here once."""

    num_spec_tokens: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    correction_tokens: int = 0
    bonus_tokens: int = 0
    full_accept_rounds: int = 0
    partial_accept_rounds: int = 0
    zero_accept_rounds: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    @property
    def draft_acceptance_rate(self) -> float:
        """accepted / drafted (the paper's TAR), 0 when nothing was drafted."""
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds: tokens emitted per speculative round."""
        return 1 + self.num_accepted_draft_tokens / max(1, self.num_spec_steps)

    def record(self, *, drafted: int, accepted: int, kept: int) -> None:
        """Count one round of this row: `kept` tokens were emitted after the cut."""
        if drafted == 0:  # the target's token after all (none) of its drafts: a bonus
            self.bonus_tokens += kept
            return
        used = min(accepted, kept)
        self.num_spec_steps += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += used
        self.full_accept_rounds += used == drafted
        self.partial_accept_rounds += 0 < used < drafted
        self.zero_accept_rounds += used == 0
        self.bonus_tokens += kept > used == drafted
        self.correction_tokens += kept > used < drafted
        grow = used + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * grow)
        self.acceptance_histogram[used] += 1

    def __iadd__(self, other: SpecStats) -> SpecStats:
        for name in (
            "num_spec_steps",
            "num_draft_tokens",
            "num_accepted_draft_tokens",
            "correction_tokens",
            "bonus_tokens",
            "full_accept_rounds",
            "partial_accept_rounds",
            "zero_accept_rounds",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.num_spec_tokens = max(self.num_spec_tokens, other.num_spec_tokens)
        mine, theirs = self.acceptance_histogram, other.acceptance_histogram
        mine.extend([0] * (len(theirs) - len(mine)))
        for index, count in enumerate(theirs):
            mine[index] += count
        return self

    def as_dict(self) -> dict[str, int | float | list[int]]:
        """vLLM's per-request field names, plus the correction / bonus split."""
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": list(self.acceptance_histogram),
            "num_spec_steps": self.num_spec_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "num_draft_tokens": self.num_draft_tokens,
            "num_spec_tokens": self.num_spec_tokens,
            "correction_tokens": self.correction_tokens,
            "bonus_tokens": self.bonus_tokens,
            "full_accept_rounds": self.full_accept_rounds,
            "partial_accept_rounds": self.partial_accept_rounds,
            "zero_accept_rounds": self.zero_accept_rounds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """A token and its log-probability under the raw logits.

    token, bytes:  its text, and the UTF-8 bytes it stands for, which are part of a character where
                   a character has several tokens; None without a tokenizer
    rank:          1 for the most probable token
    top:           the most probable tokens, best first; they have no `top` of their own
    """

    token_id: int
    logprob: float
    rank: int
    token: str | None = None
    bytes: list[int] | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRound:
    """What one round did to one row.

    kv_len:      cached target tokens before the round
    fed:         tokens fed to the target (a prompt chunk, or 1 + drafted)
    drafts:      the draft tokens
    target_ids:  the target's own token after each scored position, [len(drafts) + 1]
    accepted:    accepted draft tokens, before stopping cut the block
    emitted:     tokens committed, after the cut
    """

    index: int
    slot: int
    kv_len: int
    fed: int
    drafts: tuple[int, ...]
    target_ids: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    finish_reason: FinishReason | None


class AuditOutcome(StrEnum):
    """What came of decoding a request again, plain and alone."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NEAR_TIE = "near tie"
    NOT_AUDITABLE = "not auditable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """What an audit of one request found.

    position:  first new token that differs, counted from 0
    reason:    what differs, or why the request cannot be audited
    prompt, expected: of a difference: ids of the prompt and of the plain run up to it
    rounds:    of a difference: the row's transcript
    """

    outcome: AuditOutcome
    position: int | None = None
    reason: str | None = None
    prompt: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()
    rounds: tuple[RowRound, ...] = ()

    def __str__(self) -> str:
        """As it stands in files: `equal`, `different(7)`, `near tie(7)`, `not auditable`."""
        return self.outcome if self.position is None else f"{self.outcome}({self.position})"

    @property
    def failed(self) -> bool:
        """Whether the output is not what the target alone would have written."""
        return self.outcome is AuditOutcome.DIFFERENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One finished request.

    index:          position of the prompt in the call
    sequence:       which of its `num_return_sequences` sequences
    token_ids:      new tokens only; a final eos is kept
    text:           `token_ids` decoded, special tokens skipped; None without a tokenizer
    finish_reason:  eos, stop or length
    prompt_len:     tokens of the prompt
    num_cached_tokens: of these, copied from another row that began with the same ones
    stats:          this row's counters
    mode:           "speculative", or "plain: <reason>"
    numerics:       "exact" or "fast", as it ran
    executor:       "torch" or "openvino", of the target
    seed:           of a sampled row, given or drawn; None for a greedy row
    logprobs:       one per new token, where asked for
    prompt_logprobs: one per token of the prompt, None for the first, where asked for
    scores, logits: [new tokens, V] float32, processed and raw, where asked for
    audited:        what an audit found, where `audit` chose this request
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    prompt_len: int
    stats: SpecStats
    mode: str
    numerics: str = "fast"
    executor: str = "torch"
    sequence: int = 0
    num_cached_tokens: int = 0
    seed: int | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    scores: Tensor | None = None
    logits: Tensor | None = None
    audited: Audit | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """Tokens of one row committed in one round: `token_ids` are new, `text` is their text.

    index, sequence: as in `Result`
    logprobs:        one per token, where asked for
    result:          with the last event of a row
    """

    index: int
    token_ids: list[int]
    text: str | None
    sequence: int = 0
    logprobs: list[TokenLogprob] | None = None
    result: Result | None = None
