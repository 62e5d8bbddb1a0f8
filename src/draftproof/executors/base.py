"""All that the loop needs of a model and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from draftproof.types import RaggedTokens


class Executor(Protocol):
    """A model with room for `rows` sequences of at most `capacity` tokens each.

    Lengths are its state: `lengths[row]` tokens of a row are cached, and the next token fed to
    that row gets position `lengths[row]`.
    """

    rows: int
    capacity: int
    vocab_size: int
    device: torch.device
    lengths: list[int]

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V]."""

    def truncate(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row (the rollback of a rejection)."""

    def release(self, row: int) -> None:
        """Forget a row entirely."""

    def check(self) -> None:
        """Raise InvariantError when the memory contradicts the lengths."""

    def poison(self) -> None:
        """Overwrite everything that must never be read with large finite junk (debug, tests)."""
