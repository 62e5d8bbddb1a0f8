"""The memory that the faulty methods share: all rows write in the same columns, none moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftproof.batch import Batch
from draftproof.engine.grouping import PhasedScheduler
from draftproof.engine.methods import Limits, Method
from draftproof.engine.scheduler import Scheduler
from draftproof.errors import InvariantError
from draftproof.executors.memory import JUNK, CachedRows
from draftproof.executors.padded import known_tokens
from draftproof.executors.rectangle import Rectangle, score
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class ColumnsExecutor(CachedRows):
    """All rows feed into the columns behind the widest one; rejected entries stay as holes.

        . a a a a x x A A        content of a: without the dots (padding) and x (rejected)
        b b b b b b x B B        `width` is the same for all rows

    What a subclass makes of holes and positions is its method, and its fault. The bookkeeping of
    lengths is right throughout, so that the engine notices nothing.

    drafted: most draft tokens of a row in a round
    """

    drafted: int = 0
    width: int = field(default=0, init=False)
    content: Tensor = field(init=False)  # [rows, slots] bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self.content = torch.zeros(self.rows, self.slots, dtype=torch.bool)

    @property
    def slots(self) -> int:
        """Every token may cost a whole round of columns."""
        return self.shapes.view_of(self.capacity * (self.drafted + 2))

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V]."""
        self.refuse_misfit(tokens)
        self.settle()
        rectangle = self.place(tokens)
        logits = score(self.model, self.cache, rectangle, tokens)
        self.width = rectangle.width
        self.grow(tokens)
        return logits

    def settle(self) -> None:
        """What happens to the cache between two forwards: nothing."""

    def place(self, tokens: RaggedTokens) -> Rectangle:
        """Columns for the tokens, so that the known ones of all rows end in the same one."""
        known = known_tokens(tokens)
        own = [end - start for end, start in zip(known, tokens.starts, strict=True)]
        begins = [self.width + max(own) - count for count in own]
        ends = [begin + count for begin, count in zip(begins, tokens.counts, strict=True)]
        if max(ends) > self.slots:
            raise InvariantError(
                f"{max(ends)} columns, {self.slots} allocated: read the prompts in one forward "
                "(a larger max_num_batched_tokens)"
            )
        for row, begin, end in zip(tokens.rows, begins, ends, strict=True):
            self.content[row, begin:end] = True
        content = self.content[list(tokens.rows), : max(ends)]
        return Rectangle(
            rows=tokens.rows,
            begins=begins,
            counts=tokens.counts,
            content=content,
            positions=self.positions(tokens, content, begins),
            shapes=self.shapes,
        )

    def positions(self, tokens: RaggedTokens, content: Tensor, begins: list[int]) -> Tensor:
        """Positions of the last columns, [R, Q] int64."""
        raise NotImplementedError

    def truncate(self, row: int, length: int) -> None:
        """Rejected entries are masked and stay where they are."""
        dropped = self.lengths[row] - length
        super().truncate(row, length)
        if dropped:
            self.content[row, self.content[row].nonzero()[-dropped:, 0]] = False

    def release(self, row: int) -> None:
        """Forget a row; with the last one the columns are free again."""
        super().release(row)
        self.content[row] = False
        if not any(self.lengths):
            self.width = 0

    def poison(self) -> None:
        """Overwrite padding and holes with junk: they are masked, and must not be read."""
        for tensor in (*self.cache.keys, *self.cache.values):
            junk = ~self.content.to(tensor.device)[:, None, :, None]
            tensor.masked_fill_(junk, JUNK)


@dataclass(kw_only=True)
class StaticScheduler(PhasedScheduler):
    """A batch is decoded to its end before the next one is admitted: columns are never freed."""

    def admit(self, batch: Batch) -> None:
        if not len(batch):
            super().admit(batch)


@dataclass(frozen=True, kw_only=True)
class ColumnsMethod(Method):
    """What the faulty methods share."""

    anchored = False

    def slots(self, capacity: int, drafted: int) -> int:
        return capacity * (drafted + 2)

    def scheduler(self, limits: Limits, max_num_seqs: int) -> Scheduler:
        return StaticScheduler(**limits.arguments)
