"""Would a wrong position explain the tokens? Asked of the model itself, token by token.

If the candidate's tokens are the ones that the target gives when the generated part sits
elsewhere, and not the ones it gives at the right place, then positions are what is wrong. Where
the candidate shows its scores, these are compared: they tell at every token, and tokens only
where another one wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.forensics.forks import Fork
from draftproof.forensics.noise import gap_change
from draftproof.forensics.scoring import tops_at
from draftproof.forensics.subjects.base import Answer, Top

LOOK = 48  # tokens after the fork: the hypothesis holds for all that was generated
ENOUGH = 0.8  # share of them that a hypothesis must give
TELLING = 3  # tokens, over all rows, at which positions must matter before they are believed
PLACES, CLOSER = 6, 10.0  # scores compared at least; how much closer than at the right positions


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """How much of the candidate's own tokens a hypothesis gives.

    Most tokens of a good model are the same wherever they sit, and say nothing. So a hypothesis is
    weighed by the tokens at which it and the right positions disagree.

    tokens:  looked at: all that were generated up to a little after the fork
    given:   of them, what the hypothesis gives
    telling: of them, those at which the hypothesis and the right positions disagree
    told:    of the telling ones, what the hypothesis gives
    truth:   of the telling ones, what the right positions give
    off:     median distance of the candidate's gaps from those of the hypothesis; None: not shown
    off_right: the same at the right positions
    """

    name: str
    tokens: int
    given: int
    telling: int
    told: int
    truth: int
    off: float | None = None
    off_right: float | None = None

    @property
    def convincing(self) -> bool:
        """The scores are its own, or it gives nearly all tokens and nearly all that tell."""
        return self.by_scores or self.by_tokens

    @property
    def by_scores(self) -> bool:
        """The candidate's own scores are those of the hypothesis."""
        if self.off is None or self.off_right is None:
            return False
        return self.off_right > 0 and CLOSER * self.off <= self.off_right

    @property
    def by_tokens(self) -> bool:
        """It gives nearly all, and nearly all of those that tell."""
        enough = self.given >= ENOUGH * self.tokens and self.told >= ENOUGH * self.telling
        return enough and self.telling > 0

    def __add__(self, other: Explanation) -> Explanation:
        """Two rows together; the name is the first one's."""
        return Explanation(
            name=self.name,
            tokens=self.tokens + other.tokens,
            given=self.given + other.given,
            telling=self.telling + other.telling,
            told=self.told + other.told,
            truth=self.truth + other.truth,
            off=self.off,
            off_right=self.off_right,
        )


def explain_positions(
    model: Any,
    prompt: Sequence[int],
    answer: Answer,
    fork: Fork,
    candidates: Iterator[tuple[str, list[int]]],
) -> Explanation | None:
    """The best hypothesis for one row; None where too few tokens follow the fork.

    candidates: name, and positions of prompt + ids
    """
    first = fork.divergence.position
    if len(answer.ids) - first < 4:
        return None
    tokens = [*prompt, *answer.ids]
    right = tops_at(model, tokens, range(len(tokens)))
    limit = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    # the first token is the prefill's, before anything could be misplaced
    span = range(1, min(len(answer.ids), first + LOOK))
    tried = [
        weigh(name, span, answer, right[at:], tops_at(model, tokens, positions)[at:])
        for at in [len(prompt) - 1]
        for name, positions in candidates
        if min(positions) >= 0 and max(positions) < limit
    ]
    return max(tried, key=_closeness, default=None)


def _closeness(one: Explanation) -> tuple[float, int, int]:
    return -1.0 if one.off is None else -one.off, one.given, one.told - one.truth


def weigh(
    name: str, span: range, answer: Answer, right: Sequence[Top], moved: Sequence[Top]
) -> Explanation:
    """How much of an answer a hypothesis gives.

    right, moved: in front of each of its tokens, as asked and under the hypothesis
    """
    ids = answer.ids
    telling = [i for i in span if right[i].ids[0] != moved[i].ids[0]]
    return Explanation(
        name=name,
        tokens=len(span),
        given=sum(moved[i].ids[0] == ids[i] for i in span),
        telling=len(telling),
        told=sum(moved[i].ids[0] == ids[i] for i in telling),
        truth=sum(right[i].ids[0] == ids[i] for i in telling),
        off=_distance(answer, moved, span),
        off_right=_distance(answer, right, span),
    )


def _distance(answer: Answer, other: Sequence[Top], span: range) -> float | None:
    """Median difference of the gaps between the two likeliest tokens."""
    if len(answer.tops) != len(answer.ids):
        return None
    found = [gap_change(answer.tops[i], other[i]) for i in span]
    known = sorted(change for change in found if change is not None)
    return known[len(known) // 2] if len(known) >= PLACES else None


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
