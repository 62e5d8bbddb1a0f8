"""Would a wrong position explain the tokens? Asked of the model itself, token by token.

If the candidate's tokens after a fork are the ones that the target gives when the generated part
sits elsewhere, and not the ones it gives at the right place, then positions are what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.forensics.forks import Fork
from draftproof.forensics.scoring import choices_at

LOOK = 12  # tokens after the fork
ENOUGH = 0.8  # share of them that a hypothesis must give


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """How much of the candidate's own continuation a hypothesis gives, and the truth gives."""

    name: str
    explained: float
    truth: float

    @property
    def convincing(self) -> bool:
        """It gives nearly all, and clearly more than the right positions do."""
        return self.explained >= ENOUGH and self.explained >= self.truth + 0.25


def explain_positions(
    model: Any,
    prompt: Sequence[int],
    ids: Sequence[int],
    fork: Fork,
    candidates: Iterator[tuple[str, list[int]]],
) -> Explanation | None:
    """The best hypothesis for one row; None where too few tokens follow the fork.

    candidates: name, and positions of prompt + ids
    """
    first = fork.divergence.position
    if len(ids) - first < 4:
        return None
    tokens = [*prompt, *ids]
    span = range(len(prompt) + first, min(len(tokens), len(prompt) + first + LOOK))

    def share(positions: Sequence[int]) -> float:
        chosen = choices_at(model, tokens, positions)
        return sum(chosen[i - 1] == tokens[i] for i in span) / len(span)

    truth = share(range(len(tokens)))
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    tried = [
        Explanation(name=name, explained=share(positions), truth=truth)
        for name, positions in candidates
        if min(positions) >= 0 and max(positions) < limit
    ]
    return max(tried, key=lambda one: one.explained, default=None)


def shifted(prompt: int, count: int, shifts: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """The whole generated part moved."""
    for shift in shifts:
        places = [*range(prompt), *range(prompt + shift, prompt + shift + count)]
        yield f"generated tokens {shift:+d} positions", places


def strided(prompt: int, count: int, emitted: int, fed: int) -> Iterator[tuple[str, list[int]]]:
    """Positions advance by the block that was fed, not by what was accepted of it."""
    places = list(range(prompt))
    places += [prompt + n // emitted * fed + n % emitted for n in range(count)]
    yield f"positions advance by {fed} where {emitted} tokens were emitted", places
