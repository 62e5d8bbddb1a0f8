"""The rows being decoded. Truth is `tokens` and the executors' lengths; all else is derived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from draftproof.errors import InvariantError
from draftproof.sampling import Settings
from draftproof.types import FinishReason, Outputs, SpecStats


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt waiting for a row.

    index:     its place in the queue, different for every request of a run
    stream:    key of its random numbers (`processing.stream_key`)
    origin:    which prompt of the call it came from, and
    sequence:  which of the sequences asked for that prompt it is (`num_return_sequences`)
    """

    index: int
    prompt: list[int]
    settings: Settings = field(default_factory=Settings)
    stream: int = 0
    origin: int = 0
    sequence: int = 0

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and the whole budget."""
        return len(self.prompt) + self.settings.max_new_tokens


@dataclass(kw_only=True, slots=True)
class Row:
    """One sequence in the batch, in executor row `slot`.

    tokens = prompt + emitted; the last one is known and not yet in the target's cache:

        tokens   p p p p e e e     len 7
        kv_len   6                 decoding (== len - 1)
        kv_len   0..5              the row still owes a part of its prompt
    """

    slot: int
    request: Request
    tokens: list[int]
    kv_len: int = 0
    stats: SpecStats = field(default_factory=SpecStats)
    finish_reason: FinishReason | None = None
    outputs: Outputs = field(default_factory=Outputs)
    num_cached_tokens: int = 0  # of the prompt, copied from another row
    waits: bool = False  # takes no part in this round: another row reads what it will copy
    paused: bool = False  # takes no part until whoever drives the engine says so

    @property
    def emitted(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def budget(self) -> int:
        """Tokens this row may still emit."""
        return self.request.settings.max_new_tokens - self.generated

    @property
    def lag(self) -> int:
        """Tokens known and not yet in the target's cache; 1 for a decoding row."""
        return len(self.tokens) - self.kv_len

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt is cached, so that drafts can be scored."""
        return self.lag == 1 and self.generated > 0


@dataclass(slots=True)
class Batch:
    """At most `max_num_seqs` rows, keyed by executor row."""

    max_num_seqs: int
    rows: dict[int, Row] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Row]:
        return iter(sorted(self.rows.values(), key=lambda row: row.slot))

    def __len__(self) -> int:
        return len(self.rows)

    def free_slot(self) -> int | None:
        """Lowest free executor row, so that live rows stay close together."""
        return next((slot for slot in range(self.max_num_seqs) if slot not in self.rows), None)

    def check(self) -> None:
        """The one invariant (docs/invariants.md), for every live row, at a round's boundary."""
        for row in self:
            if not 0 <= row.kv_len <= len(row.tokens) - 1:
                raise InvariantError(
                    f"row {row.slot}: kv_len {row.kv_len}, expected 0..{len(row.tokens) - 1}"
                )
            if row.generated > 0 and row.lag != 1:
                raise InvariantError(f"row {row.slot}: decoding with lag {row.lag}, expected 1")
