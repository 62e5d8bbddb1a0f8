"""The places where a token is to be chosen, and what stands before each of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.sampling import Settings

PAD = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Positions:
    """N positions of R rows; the logits that belong to them are [N, V].

        row 0   t t t | d d        offset 0, 1, 2: after the last known token, after the first
        row 1   t t   | d          draft, ...; the prefix of (row 0, offset 1) is  t t t d

        owner   0 0 0 1 1
        offset  0 1 2 0 1

    drafts:    [R, K_max] int64, on the device of the logits; -1 where there is none
    settings:  of each position's row, [N]
    """

    rows: Sequence[Row]
    drafts: Tensor
    owner: Sequence[int]
    offset: Sequence[int]
    settings: list[Settings] = field(init=False)

    def __post_init__(self) -> None:
        rows = [row.request.settings for row in self.rows]
        object.__setattr__(self, "settings", [rows[owner] for owner in self.owner])

    @classmethod
    def of_block(cls, rows: Sequence[Row], drafts: Tensor, counts: Sequence[int]) -> Positions:
        """All positions of a round: `counts[r] + 1` of row r, row after row."""
        owner = [index for index, count in enumerate(counts) for _ in range(count + 1)]
        offset = [step for count in counts for step in range(count + 1)]
        return cls(rows=rows, drafts=drafts, owner=owner, offset=offset)

    def __len__(self) -> int:
        return len(self.owner)

    def select(self, indices: Sequence[int]) -> Positions:
        """Some of the positions, in the order given."""
        owner, offset = [self.owner[i] for i in indices], [self.offset[i] for i in indices]
        return Positions(rows=self.rows, drafts=self.drafts, owner=owner, offset=offset)

    @property
    def generated(self) -> list[int]:
        """Which generated token each position chooses, counted from 0, [N]."""
        places = zip(self.owner, self.offset, strict=True)
        return [self.rows[owner].generated + offset for owner, offset in places]

    @property
    def lengths(self) -> list[int]:
        """Tokens before each position, [N]."""
        places = zip(self.owner, self.offset, strict=True)
        return [len(self.rows[owner].tokens) + offset for owner, offset in places]

    @property
    def drafted(self) -> Tensor:
        """The draft token at each position, -1 where there is none, [N] int64."""
        if self.drafts.shape[1] == 0:
            return torch.full((len(self),), PAD, device=self.drafts.device)
        padded = torch.nn.functional.pad(self.drafts, (0, 1), value=PAD)  # [R, K_max + 1]
        return padded[list(self.owner), list(self.offset)]

    def column(self, name: str) -> Tensor:
        """One number per position from the settings' field `name`, [N, 1] float32."""
        values = [float(getattr(setting, name)) for setting in self.settings]
        device = self.drafts.device
        return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

    def grouped(self, key: Callable[[Settings], Hashable]) -> Iterator[tuple[Any, list[int]]]:
        """Positions whose settings agree: (value, indices), in order of appearance."""
        groups: dict[Hashable, list[int]] = {}
        for index, setting in enumerate(self.settings):
            groups.setdefault(key(setting), []).append(index)
        yield from groups.items()

    def prefixes(self, *, generated_only: bool = False) -> Tensor:
        """The tokens before each position, ending in the last column, [N, T] int64.

        row 0, offset 1     -1 -1  t  t  t  d          unused columns hold -1
        row 1, offset 0     -1 -1 -1 -1  t  t

        generated_only: leave the prompt out as well
        """
        used = sorted(set(self.owner))
        table = self._table(used)  # [R', W], every row from column 0
        device, lengths = table.device, torch.tensor(self.lengths, device=table.device)
        width = int(max(self.lengths, default=0))
        columns = lengths[:, None] - width + torch.arange(width, device=device)  # [N, T]
        local = {owner: place for place, owner in enumerate(used)}
        picked = table[[local[owner] for owner in self.owner]].gather(1, columns.clamp(min=0))
        first = [
            len(self.rows[owner].request.prompt) if generated_only else 0 for owner in self.owner
        ]
        return picked.masked_fill(columns < torch.tensor(first, device=device)[:, None], PAD)

    def _table(self, used: Sequence[int]) -> Tensor:
        """Tokens and drafts of the rows `used`, left-aligned, [R', longest + K_max] int64."""
        device, drafted = self.drafts.device, self.drafts.shape[1]
        rows = [self.rows[owner] for owner in used]
        longest = max(len(row.tokens) for row in rows)
        lines = [row.tokens + [PAD] * (longest + drafted - len(row.tokens)) for row in rows]
        table = torch.tensor(lines, dtype=torch.int64, device=device)
        ends = torch.tensor([len(row.tokens) for row in rows], device=device)
        columns = ends[:, None] + torch.arange(drafted, device=device)
        return table.scatter(1, columns, self.drafts[list(used)])
