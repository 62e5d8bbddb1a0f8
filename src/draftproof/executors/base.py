"""All that the loop needs of a model and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from draftproof.numerics.shapes import Shapes
    from draftproof.numerics.store import Verdict
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


@runtime_checkable
class ForeignModel(Protocol):
    """A model that another runtime than PyTorch runs, with the memory that goes with it."""

    @property
    def name(self) -> str:
        """As the user named it."""

    @property
    def runtime(self) -> str:
        """Name of what runs it, as in `executor=`."""

    @property
    def vocab_size(self) -> int:
        """Size of the logits."""

    @property
    def max_positions(self) -> int | None:
        """Context length, None when the model does not say."""

    @property
    def eos(self) -> Sequence[int]:
        """Ids that end a row by default."""

    @property
    def device(self) -> torch.device:
        """Where ids and logits are."""

    @property
    def dtype(self) -> torch.dtype:
        """In what it computes."""

    def calibrate(self) -> Verdict:
        """Under which shapes a row's result does not depend on the other rows, found once."""

    def kv_bytes(self, rows: int, capacity: int) -> int:
        """Size of the KV cache of `rows` rows of `capacity` tokens, in bytes."""

    def executor(self, rows: int, capacity: int, free: int | None, shapes: Shapes) -> Executor:
        """A memory for `rows` rows. Raises OutOfMemoryError when it needs more than `free`."""
