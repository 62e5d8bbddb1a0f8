"""What the loop needs of a verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from draftproof.batch import Row
from draftproof.types import Drafts, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class Verifier(Protocol):
    """Decides how much of each row's draft the target itself would have written."""

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        """logits: [sum(counts + 1), V], row after row; see Verdict for what comes back."""
