"""What acts on the logits of greedy and sampled rows alike, each position under its own prefix.

Arithmetic and order are those of transformers' processors, so that scores are bitwise theirs;
presence and frequency penalty are OpenAI's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.processing.positions import PAD, Positions
from draftproof.sampling import Ids


def add_sequence_bias(scores: Tensor, positions: Positions) -> Tensor:
    """Add each bias to the last id of its sequence where the other ids end the prefix."""
    scores = scores.clone()
    for pairs, where in positions.grouped(lambda settings: settings.sequence_bias):
        scores[where] += _bias(pairs, positions.select(where), scores)
    return scores


def forbid_bad_words(scores: Tensor, positions: Positions) -> Tensor:
    """Forbid the last id of every bad word whose other ids end the prefix; never eos itself."""
    scores = scores.clone()
    for (words, eos), where in positions.grouped(lambda s: (s.bad_words_ids, s.eos_token_id)):
        pairs = [(word, -torch.inf) for word in words if len(word) > 1 or word[0] not in eos]
        scores[where] += _bias(pairs, positions.select(where), scores)
    return scores


def _bias(pairs: Sequence[tuple[Ids, float]], positions: Positions, like: Tensor) -> Tensor:
    """Sum of the biases that apply at each position, [n, V]."""
    bias = like.new_zeros(len(positions), like.shape[-1])
    single = {ids[0]: value for ids, value in pairs if len(ids) == 1}
    bias[:, list(single)] = torch.tensor(
        list(single.values()), dtype=like.dtype, device=like.device
    )
    longer = [(ids, value) for ids, value in pairs if len(ids) > 1]
    if not longer:
        return bias
    prefixes = positions.prefixes()  # [n, T]
    for ids, value in longer:
        if len(ids) - 1 <= prefixes.shape[1]:
            head = torch.tensor(ids[:-1], device=like.device)
            matches = (prefixes[:, 1 - len(ids) :] == head).all(-1)
            bias[:, ids[-1]] += torch.where(matches, value, 0.0)
    return bias


def penalise_repetition(scores: Tensor, positions: Positions) -> Tensor:
    """Divide positive and multiply negative logits of every token of the prefix, prompt included.

    Keskar et al. 2019, "CTRL"; a value above 1 discourages.
    """
    seen = count_tokens(positions.prefixes(), scores.shape[-1]) > 0  # [n, V]
    penalty = positions.column("repetition_penalty")
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def penalise_presence(scores: Tensor, positions: Positions) -> Tensor:
    """Subtract frequency_penalty x count + presence_penalty x (count > 0) of generated tokens."""
    counts = count_tokens(positions.prefixes(generated_only=True), scores.shape[-1])
    scores = scores - positions.column("frequency_penalty") * counts
    return scores - positions.column("presence_penalty") * (counts > 0)


def count_tokens(prefixes: Tensor, vocab_size: int) -> Tensor:
    """How often each token occurs, [n, T] -> [n, V] float32; unused columns and ids >= V do not."""
    outside = (prefixes == PAD) | (prefixes >= vocab_size)
    shape = len(prefixes), vocab_size + 1
    counts = torch.zeros(shape, dtype=torch.float32, device=prefixes.device)
    ones = torch.ones_like(prefixes, dtype=counts.dtype)
    return counts.scatter_add_(1, prefixes.masked_fill(outside, vocab_size), ones)[:, :vocab_size]


def forbid_repeated_ngrams(scores: Tensor, positions: Positions) -> Tensor:
    """Forbid every token that would complete an n-gram that the prefix already holds."""
    scores = scores.clone()
    for size, where in positions.grouped(lambda settings: settings.no_repeat_ngram_size):
        prefixes = positions.select(where).prefixes()  # [n, T]
        if prefixes.shape[1] >= size:
            repeated = _completions(prefixes, size, scores.shape[-1])
            scores[where] = scores[where].masked_fill(repeated, -torch.inf)
    return scores


def _completions(prefixes: Tensor, size: int, vocab_size: int) -> Tensor:
    """Which tokens follow an earlier occurrence of the prefix's last size - 1 tokens, [n, V]."""
    windows = prefixes.unfold(1, size, 1)  # [n, T - size + 1, size]
    final = prefixes[:, prefixes.shape[1] - size + 1 :]  # [n, size - 1]
    repeats = (windows[..., :-1] == final[:, None]).all(-1) & (windows != PAD).all(-1)
    tokens = windows[..., -1].masked_fill(~repeats, vocab_size)
    found = torch.zeros(len(prefixes), vocab_size + 1, dtype=torch.bool, device=prefixes.device)
    return found.scatter_(1, tokens, True)[:, :vocab_size]


def forbid_early_eos(scores: Tensor, positions: Positions) -> Tensor:
    """Forbid eos while a row has fewer than `min_new_tokens`; `scores` itself is left untouched."""
    flat: list[int] = []
    banned: list[int] = []
    for index, (settings, count) in enumerate(
        zip(positions.settings, positions.generated, strict=True)
    ):
        if count < settings.min_new_tokens:
            flat += [index] * len(settings.eos_token_id)
            banned += settings.eos_token_id
    if not flat:
        return scores
    scores = scores.clone()
    scores[flat, banned] = -torch.inf
    return scores
