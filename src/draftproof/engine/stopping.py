"""Cuts ONE row's new tokens at the earliest of eos, stop string and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftproof.batch import Row
from draftproof.types import FinishReason

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Cut:
    """How many of the offered tokens stay, and whether the row ends with them."""

    count: int
    reason: FinishReason | None


def cut(row: Row, offered: Sequence[int], decode: Decode | None, room: int) -> Cut:
    """Keep the offered tokens up to and including the one that ends the row.

    room: tokens the executors can still hold for this row.
    """
    settings = row.request.settings
    limit = min(row.budget, room)
    for count, token in enumerate(offered[:limit], start=1):
        enough = row.generated + count >= settings.min_new_tokens
        if enough and token in settings.eos_token_id:
            return Cut(count, FinishReason.EOS)
        if enough and _stops(row, offered[:count], decode):
            return Cut(count, FinishReason.STOP)
        if _ends(row, offered[:count]):
            return Cut(count, FinishReason.STOP)
    if len(offered) >= limit:
        return Cut(limit, FinishReason.LENGTH)
    return Cut(len(offered), None)


def _stops(row: Row, new: Sequence[int], decode: Decode | None) -> bool:
    """Whether the last token of `new` completes a stop string in the generated text.

    Only the end of the text is decoded: a token is at least a byte and a character at most four,
    so this many tokens cover the longest stop string and a character split at their start.
    """
    stops = row.request.settings.stop_strings
    if not stops or decode is None:
        return False
    window = 4 * max(map(len, stops)) + 8
    tail = [*row.emitted, *new][-window:]
    # a character that is still incomplete shows as a replacement mark until its last token
    before, after = decode(tail[:-1]).rstrip("\ufffd"), decode(tail)
    ends = [after.rfind(stop) + len(stop) for stop in stops if stop in after]
    return any(end > len(before) for end in ends)


def _ends(row: Row, new: Sequence[int]) -> bool:
    """Whether one of the row's own stopping criteria says so, told prompt and new tokens."""
    criteria = row.request.settings.stopping_criteria
    if not criteria:
        return False
    ids = torch.tensor([[*row.tokens, *new]])
    return any(bool(criterion(ids, None)) for criterion in criteria)
