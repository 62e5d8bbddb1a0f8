"""From logits to scores to tokens: which stage acts where, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.processing import own, penalties, warpers
from draftproof.processing.best import best, unbroken
from draftproof.processing.noise import Draw, exponential, position_key, race
from draftproof.processing.positions import Positions
from draftproof.sampling import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One step of processing: which rows want it, and what it does to their scores.

    apply: (scores [n, V] float32, their positions) -> new scores [n, V]; never in place
    """

    wanted: Callable[[Settings], bool]
    apply: Callable[[Tensor, Positions], Tensor]


# In transformers' order: penalties, then a request's own processors, then warpers.
PENALTIES = (
    Stage(wanted=lambda s: bool(s.sequence_bias), apply=penalties.add_sequence_bias),
    Stage(wanted=lambda s: s.repetition_penalty != 1.0, apply=penalties.penalise_repetition),
    Stage(
        wanted=lambda s: bool(s.presence_penalty or s.frequency_penalty),
        apply=penalties.penalise_presence,
    ),
    Stage(wanted=lambda s: s.no_repeat_ngram_size > 0, apply=penalties.forbid_repeated_ngrams),
    Stage(wanted=lambda s: bool(s.bad_words_ids), apply=penalties.forbid_bad_words),
    Stage(wanted=lambda s: s.min_new_tokens > 0, apply=penalties.forbid_early_eos),
)
OWN = (Stage(wanted=lambda s: bool(s.logits_processor), apply=own.call_processors),)
WARPERS = (
    Stage(wanted=lambda s: s.sampled and s.temperature != 1.0, apply=warpers.apply_temperature),
    Stage(wanted=lambda s: s.sampled and s.top_k > 0, apply=warpers.keep_top_k),
    Stage(wanted=lambda s: s.sampled and s.top_p < 1.0, apply=warpers.keep_top_p),
    Stage(wanted=lambda s: s.sampled and s.min_p > 0.0, apply=warpers.keep_min_p),
)


def run(stages: Sequence[Stage], scores: Tensor, positions: Positions) -> Tensor:
    """Apply each stage to the positions whose rows want it, [N, V] -> [N, V]."""
    settings = [id(setting) for setting in positions.settings]
    distinct = dict(zip(settings, positions.settings, strict=True))
    for stage in stages:
        wanted = {key for key, setting in distinct.items() if stage.wanted(setting)}
        where = [index for index, key in enumerate(settings) if key in wanted] if wanted else []
        if len(where) == len(settings):
            scores = stage.apply(scores, positions)
        elif where:
            part = stage.apply(scores[where], positions.select(where))
            scores = scores.index_copy(0, torch.tensor(where, device=scores.device), part)
    return scores


def keys(positions: Positions, draws: Sequence[Draw]) -> list[int]:
    """Key of the random numbers of each position, [N]."""
    streams = [positions.rows[owner].request.stream for owner in positions.owner]
    return [
        position_key(stream, position, draw)
        for stream, position, draw in zip(streams, positions.generated, draws, strict=True)
    ]


def choose(scores: Tensor, positions: Positions, *, drafting: bool = False) -> Tensor:
    """A token per position, [N] int64: the argmax, or a draw where the row is sampled.

    drafting: a row under rejection sampling draws its drafts with numbers of their own; one under
              seeded coupling with those that the target's choice will be made with
    """
    settings = positions.settings
    where = [index for index, setting in enumerate(settings) if setting.sampled]
    if not where:
        return best(scores)
    draws = [
        Draw.DRAFT if drafting and settings[index].drawn_from_draft else Draw.CHOICE
        for index in where
    ]
    picked = keys(positions.select(where), draws)
    if len(where) == len(settings):
        return _draw(scores, picked)
    return best(scores).index_copy(
        0, torch.tensor(where, device=scores.device), _draw(scores[where], picked)
    )


def _draw(scores: Tensor, picked: Sequence[int]) -> Tensor:
    highest = scores.amax(-1, keepdim=True)  # NaN where any score is
    weights = (scores - highest).exp_()
    tokens = race(weights, exponential(picked, scores.shape[-1], scores.device))
    finite = torch.where(highest < torch.inf, highest, -torch.inf)
    return unbroken(tokens, finite[:, 0])


def align(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits over the target's vocabulary, float32: cut, or filled up with impossible tokens.

    Two models may pad their embeddings differently: the surplus ids mean nothing.
    """
    logits = logits[:, :vocab_size].to(torch.float32)
    missing = vocab_size - logits.shape[1]
    if missing <= 0:
        return logits
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
