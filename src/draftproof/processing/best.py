"""The token with the highest score."""

from __future__ import annotations

import torch
from torch import Tensor

# Stands for "no token": scores with a NaN, or without any finite one. It equals no draft and no pad
# of a rectangle of tokens, and reaches the host with the tokens, without a read of its own.
BROKEN = -9


def best(scores: Tensor) -> Tensor:
    """[..., V] -> [...] int64: the highest score's token, of equal ones the lowest id.

    What `argmax` says, and BROKEN where no score is a number above -inf. On CPUs `max` takes a
    third of the time of `argmax`, which is most of what a round of many rows spends outside the
    models.
    """
    if scores.device.type == "cpu":
        highest = scores.max(dim=-1)
        return unbroken(highest.indices, highest.values)
    tokens = scores.argmax(dim=-1)
    return unbroken(tokens, scores.gather(-1, tokens[..., None])[..., 0])


def unbroken(tokens: Tensor, highest: Tensor) -> Tensor:
    """The tokens, BROKEN where the highest score is NaN or -inf; both [...]."""
    return torch.where(highest > -torch.inf, tokens, BROKEN)
