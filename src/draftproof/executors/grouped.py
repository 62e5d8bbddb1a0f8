"""ExSpec's pool: many ragged rows, of which a few at a time form a rectangle.

Source: Zhang et al., arXiv:2510.22876 (ExSpec: same-length grouping), from its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.executors.padded import PaddedExecutor
from draftproof.types import RaggedTokens


@dataclass(kw_only=True)
class GroupedExecutor(PaddedExecutor):
    """A pool whose rows stay where they are unless a group of them cannot be read like that.

    pool     a a a a a          a and c end in one column: a rectangle as they lie
             . . b b b b b      so do b and e, although e is longer; b was padded in a round
             c c c c c          before, and would have to move to join a and c, as would d
             d d d
             e e e e e e e
    """

    def end(self, row: int, length: int) -> int:
        """Column in which a row of `length` tokens ends; rows that share it need not move.

        -1 for a row without content, which goes wherever its group is.
        """
        return self.pads[row] + length if self.lengths[row] else -1

    def meeting(self, tokens: RaggedTokens, known: Sequence[int]) -> int:
        """The column at which the fewest cached tokens move; the leftmost of those."""
        ends = [self.pads[row] + count for row, count in zip(tokens.rows, known, strict=True)]
        least, most = max(known), self.slots - max(0, *(keep - 1 for keep in tokens.keep))
        allowed = sorted({least, *(end for end in ends if least <= end <= most)})
        placed = list(zip(tokens.starts, ends, strict=True))
        return min(allowed, key=lambda end: sum(size for size, own in placed if own != end))
