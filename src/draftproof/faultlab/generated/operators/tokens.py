"""Operators on the verdict of a round: what is accepted, what is emitted, what processors do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.faultlab.generated.circumstances import When
from draftproof.faultlab.generated.operators.base import (
    ALWAYS,
    Draw,
    Operator,
    named,
)
from draftproof.faultlab.generated.seam import Injection, Judging
from draftproof.types import Verdict

CORRECTION = named("bonus/correction")
UNVERIFIED = named("unverified draft")
DEFAULTS = named("processors", "other defaults")
TIMES = (
    When.ALWAYS,
    When.AFTER_REJECTION,
    When.AFTER_ACCEPTANCE,
    When.NEIGHBOUR_ENDED,
    When.UNEQUAL_K,
    When.BEYOND_LENGTH,
    When.ONE_IN_N,
)

# tokens of a row [K_max + 1], its drafts [K], what was accepted, its logits [K + 1, V] -> accepted;
# tokens are changed in place
Rule = Callable[[Tensor, list[int], int, Tensor], int]


def ruling(rule: Rule) -> Injection:
    """Another verdict for the rows on which the fault acts."""

    def judge(told: Judging, verdict: Verdict) -> Verdict:
        tokens, accepted = verdict.tokens.clone(), verdict.accepted.clone()
        for place in told.hits:
            drafts = told.drafts.ids[place, : told.drafts.counts[place]].tolist()
            if drafts:
                logits = told.logits[told.lines(place)]
                accepted[place] = rule(tokens[place], drafts, int(accepted[place]), logits)
        return Verdict(accepted=accepted, tokens=tokens)

    return Injection(judge=judge)


# -- which token is emitted ------------------------------------------------------------------------


def draft_at_mismatch(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """The draft's token goes out where it is wrong."""
    if accepted < len(drafts):
        tokens[accepted] = drafts[accepted]
    return accepted


def repeated_bonus(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """After a full acceptance the last draft goes out twice."""
    if accepted == len(drafts):
        tokens[accepted] = drafts[-1]
    return accepted


def next_index(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """The correction is read one place too far, behind the wrong draft."""
    if accepted < len(drafts):
        tokens[accepted] = tokens[accepted + 1].clone()
    return accepted


def index_before(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """Correction or bonus is read one place too early."""
    if accepted:
        tokens[accepted] = tokens[accepted - 1].clone()
    return accepted


def second_best(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """Correction or bonus is the target's second choice."""
    tokens[accepted] = int(logits[accepted].topk(2).indices[1])
    return accepted


# -- what is accepted ------------------------------------------------------------------------------


def first_as_it_is(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """The first draft is accepted as it is."""
    tokens[0] = drafts[0]
    return _matched(tokens, drafts)


def last_as_it_is(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """The last draft is accepted as it is, where those before it are right."""
    tokens[len(drafts) - 1] = drafts[-1]
    return _matched(tokens, drafts)


def one_too_many(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """The first wrong draft is accepted, too."""
    if accepted == len(drafts):
        return accepted
    tokens[accepted] = drafts[accepted]
    return accepted + 1


def among_the_best(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """A draft is accepted when it is among the target's three best."""
    for place, draft in enumerate(drafts):
        if draft in logits[place].topk(3).indices.tolist():
            tokens[place] = draft
    return _matched(tokens, drafts)


def by_margin(tokens: Tensor, drafts: list[int], accepted: int, logits: Tensor) -> int:
    """A draft is accepted when its logit is close enough to the best."""
    for place, draft in enumerate(drafts):
        line = logits[place]
        if draft < len(line) and line.max() - line[draft] < 1.0:
            tokens[place] = draft
    return _matched(tokens, drafts)


def _matched(tokens: Tensor, drafts: list[int]) -> int:
    wrong = (n for n, draft in enumerate(drafts) if int(tokens[n]) != draft)
    return next(wrong, len(drafts))


# -- processors that the reference has not ---------------------------------------------------------

Shape = Callable[[Tensor, Sequence[int]], None]  # logits [V] after a text, changed in place


def processing(shape: Shape) -> Injection:
    """Another distribution at every place of the rows on which the fault acts."""

    def score(told: Judging) -> Tensor:
        logits = told.logits.clone()
        for place in told.hits:
            text = _text(told.rows[place])
            drafts = told.drafts.ids[place, : told.drafts.counts[place]].tolist()
            for offset, line in enumerate(logits[told.lines(place)]):
                shape(line, [*text, *drafts[:offset]])
        return logits

    return Injection(score=score)


def _text(row: Row) -> list[int]:
    return list(row.tokens)


def repetition(draw: Draw) -> Injection:
    """A penalty on tokens that were there before, as a checkpoint's defaults may have it."""
    penalty = draw.rng.choice((1.2, 1.5))

    def shape(line: Tensor, text: Sequence[int]) -> None:
        seen = torch.tensor(sorted(set(text)))
        seen = seen[seen < len(line)]
        line[seen] = torch.where(line[seen] > 0, line[seen] / penalty, line[seen] * penalty)

    return processing(shape)


def banned(draw: Draw) -> Injection:
    """A token that is never allowed."""
    token = draw.token()

    def shape(line: Tensor, text: Sequence[int]) -> None:
        line[token] = -torch.inf

    return processing(shape)


def no_bigram_twice(draw: Draw) -> Injection:
    """No pair of tokens may come twice."""

    def shape(line: Tensor, text: Sequence[int]) -> None:
        after = [b for a, b in zip(text, text[1:], strict=False) if a == text[-1]]
        line[[token for token in after if token < len(line)]] = -torch.inf

    return processing(shape)


def frequency(draw: Draw) -> Injection:
    """A penalty that grows with every time a token was there."""
    penalty = draw.rng.choice((0.5, 1.0))

    def shape(line: Tensor, text: Sequence[int]) -> None:
        counts = torch.bincount(torch.tensor(list(text)), minlength=len(line))[: len(line)]
        line -= penalty * counts

    return processing(shape)


def _operator(family: str, right: frozenset[str], rule: Rule) -> Operator:
    return Operator(
        name=rule.__name__,
        family=family,
        story=_story(rule),
        right=right,
        make=lambda draw: ruling(rule),
        whens=TIMES,
    )


def _story(rule: Rule) -> str:
    """The rule's own description as a part of a sentence."""
    text = (rule.__doc__ or "").rstrip(".")
    return text[:1].lower() + text[1:]


def _default(name: str, story: str, make: Callable[[Draw], Injection]) -> Operator:
    return Operator(
        name=name,
        family="processors",
        story=story,
        right=DEFAULTS,
        make=make,
        whens=ALWAYS,
        prefill=True,
    )


EMITTED, ACCEPTED = "emitted token", "acceptance"
RULES: tuple[tuple[str, frozenset[str], Rule], ...] = (
    (EMITTED, CORRECTION, draft_at_mismatch),
    (EMITTED, CORRECTION, repeated_bonus),
    (EMITTED, CORRECTION, next_index),
    (EMITTED, CORRECTION, index_before),
    (EMITTED, CORRECTION, second_best),
    (ACCEPTED, UNVERIFIED, first_as_it_is),
    (ACCEPTED, UNVERIFIED, last_as_it_is),
    (ACCEPTED, UNVERIFIED | CORRECTION, one_too_many),
    (ACCEPTED, UNVERIFIED, among_the_best),
    (ACCEPTED, UNVERIFIED, by_margin),
)
OPERATORS = (
    *(_operator(family, right, rule) for family, right, rule in RULES),
    _default("repetition", "a repetition penalty that the reference has not", repetition),
    _default("banned", "a token that is never allowed", banned),
    _default("no_bigram_twice", "no pair of tokens may come twice", no_bigram_twice),
    _default("frequency", "a frequency penalty that the reference has not", frequency),
)
