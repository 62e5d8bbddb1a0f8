"""All operators, and which of them are held out.

The decision may be looked at, and changed, on the open half alone. Which half an operator is in
follows from its family and name: of all operators, in the order of their families and names, every
second one is held out. So is every pair, even one of two operators of the open half.
"""

from __future__ import annotations

from draftproof.faultlab.generated.operators import attention, cache, edges, tokens
from draftproof.faultlab.generated.operators.base import Draw, Need, Operator

__all__ = ["HELD_OUT", "OPERATORS", "Draw", "Need", "Operator", "halves"]

OPERATORS: tuple[Operator, ...] = tuple(
    sorted(
        (*attention.OPERATORS, *cache.OPERATORS, *tokens.OPERATORS, *edges.OPERATORS),
        key=lambda operator: (operator.family, operator.name),
    )
)


def halves() -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """The open half, and the one that is held out."""
    return OPERATORS[::2], OPERATORS[1::2]


HELD_OUT = frozenset(operator.name for operator in halves()[1])
