"""Verification of any mixture of rows: greedy and sampled, each with its own processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.processing import (
    OWN,
    PENALTIES,
    WARPERS,
    Draw,
    Positions,
    choose,
    exponential,
    keys,
    run,
    unbroken,
    uniform,
)
from draftproof.types import Drafts, Verdict
from draftproof.verifiers.greedy import GreedyVerifier, longest_match
from draftproof.verifiers.rejection import accept_or_replace

GREEDY = GreedyVerifier()
UNKNOWN = -3  # a position that was not reached; equals neither a token nor a missing draft


@dataclass(frozen=True, kw_only=True)
class SamplingVerifier:
    """At every position one token, chosen as if all drafts before it were right; then a match.

        drafts   d1 d2 d3 d4
        tokens   t0 t1 t2 t3 t4     greedy:     argmax of the scores
                                    seeded:     drawn with numbers of (seed, request, position)
                                    rejection:  d1 with probability min(1, p/q), else from the rest
        accepted = the longest prefix with d1 == t0, d2 == t1, ...; emitted as in greedy decoding

    A choice uses numbers of its own position only, so that choices thrown away say nothing about
    later ones. Drafts that are no random draws (n-gram) need no p / q: the target's own draw equals
    them with probability p(d), which is the rule for a one-hot q.

    A batch of plain greedy rows costs nothing extra.
    """

    def judge(self, logits: Tensor, rows: Sequence[Row], drafts: Drafts) -> Verdict:
        if all(row.request.settings.plain for row in rows):
            return GREEDY.judge(logits, rows, drafts)
        positions = Positions.of_block(rows, drafts.ids.to(logits.device), drafts.counts)
        scores = run(PENALTIES, logits.to(torch.float32, copy=True), positions)
        if any(row.request.settings.logits_processor for row in rows):
            tokens = choose_stepwise(scores, positions, drafts.probabilities)
        else:
            scores = run(WARPERS, scores, positions)
            tokens = choose_tokens(scores, positions, drafts.probabilities)
        return longest_match(tokens, drafts, scores)


def choose_tokens(scores: Tensor, positions: Positions, q: Tensor | None) -> Tensor:
    """A token per position, [N] int64, from processed scores [N, V]; q: `Drafts.probabilities`."""
    settings = positions.settings
    random = [i for i, s in enumerate(settings) if q is not None and s.drawn_from_draft]
    if q is None or not random:
        return choose(scores, positions)
    if len(random) == len(settings):
        return _speculate(scores, positions, q)
    others = [index for index in range(len(settings)) if index not in set(random)]
    tokens = torch.empty(len(settings), dtype=torch.int64, device=scores.device)
    tokens[random] = _speculate(scores[random], positions.select(random), q)
    tokens[others] = choose(scores[others], positions.select(others))
    return tokens


def _speculate(scores: Tensor, positions: Positions, q: Tensor) -> Tensor:
    drafted, count = positions.drafted, len(positions)
    steps = torch.tensor(list(positions.offset), device=q.device).clamp(max=q.shape[1] - 1)
    drawn_from = q[list(positions.owner), steps].to(scores.device)  # [n, V]
    tokens = accept_or_replace(
        scores.softmax(-1),
        drawn_from.masked_fill(drafted[:, None] < 0, 0.0),
        drafted,
        uniform(keys(positions, [Draw.ACCEPT] * count), scores.device),
        exponential(keys(positions, [Draw.CHOICE] * count), scores.shape[-1], scores.device),
    )
    highest = scores.amax(-1)  # NaN where any score is
    return unbroken(tokens, torch.where(highest < torch.inf, highest, -torch.inf))


def choose_stepwise(scores: Tensor, positions: Positions, q: Tensor | None) -> Tensor:
    """As `choose_tokens` with every row's own processors, which may keep state.

    Step j handles position j of the rows whose drafts were right so far, so that a processor is
    called for emitted positions only, in order, once each: it has nothing of a rejected draft to
    forget, and a row that has met its eos is not called again. The price is one device-to-host read
    per step. `scores` is overwritten with the processed ones.
    """
    tokens = torch.full((len(positions),), UNKNOWN, device=scores.device)
    alive = [index for index, offset in enumerate(positions.offset) if offset == 0]
    while alive:
        part = positions.select(alive)
        processed = run((*OWN, *WARPERS), scores[alive], part)
        chosen = choose_tokens(processed, part, q)
        scores[alive], tokens[alive] = processed, chosen
        going = _goes_on(chosen, part)
        alive = [index + 1 for index, goes in zip(alive, going, strict=True) if goes]
    return tokens


def _goes_on(chosen: Tensor, positions: Positions) -> list[bool]:
    """Whether each row's next position is reached: its draft was right and does not end it."""
    found = torch.stack([chosen, positions.drafted]).T.tolist()
    places = zip(found, positions.settings, positions.generated, strict=True)
    return [
        token == draft
        and not (token in settings.eos_token_id and count + 1 >= settings.min_new_tokens)
        for (token, draft), settings, count in places
    ]
