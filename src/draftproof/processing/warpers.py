"""What acts on the scores of sampled rows only: temperature and the filters, per row.

Semantics and order are transformers' (`min_tokens_to_keep` is 1): a filtered token scores -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.processing.positions import Positions

COLDEST = 1e-30  # temperatures below it may divide a score to infinity
TINY = torch.finfo(torch.float32).tiny  # what a temperature below it would become is 0
NUCLEUS = 512  # tokens looked at before a whole vocabulary is sorted


def apply_temperature(scores: Tensor, positions: Positions) -> Tensor:
    """Divide by the temperature; one so small that scores overflow leaves the best token alone."""
    temperature = positions.column("temperature")
    if min(settings.temperature for settings in positions.settings) >= COLDEST:
        return scores / temperature
    shifted = (scores - scores.amax(-1, keepdim=True)) / temperature.clamp(min=TINY)
    return torch.where(temperature < COLDEST, shifted, scores / temperature)


def keep_top_k(scores: Tensor, positions: Positions) -> Tensor:
    """Keep the k highest scores, and whatever ties with the k-th."""
    counts = [min(settings.top_k, scores.shape[-1]) for settings in positions.settings]
    best = scores.topk(max(counts)).values  # [n, largest k], descending
    last = torch.tensor(counts, device=scores.device)[:, None] - 1
    return scores.masked_fill(scores < best.gather(1, last), -torch.inf)


def keep_top_p(scores: Tensor, positions: Positions) -> Tensor:
    """Keep the fewest highest scores whose probability reaches top_p, and what ties with the last.

    Holtzman et al. 2020, "The curious case of neural text degeneration".
    """
    mass = positions.column("top_p")
    # sorting a whole vocabulary is slow on a CPU, and the nucleus is nearly always small
    width = min(NUCLEUS, scores.shape[-1]) if scores.device.type == "cpu" else scores.shape[-1]
    last, enough = _last_of_nucleus(scores, mass, width)
    if width < scores.shape[-1] and not bool(enough.all()):
        wide = (~enough).nonzero()[:, 0]
        whole, _ = _last_of_nucleus(scores[wide], mass[wide], scores.shape[-1])
        last = last.index_copy(0, wide, whole)
    return scores.masked_fill(scores < last, -torch.inf)


def _last_of_nucleus(scores: Tensor, mass: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The lowest score kept [n, 1] when only the `width` best are looked at, and if those do."""
    best, order = scores.topk(width)
    probabilities = scores.softmax(-1).gather(1, order)
    before = probabilities.cumsum(-1) - probabilities  # probability of all better tokens
    kept = (before < mass).sum(-1, keepdim=True).clamp(min=1)
    return best.gather(1, kept - 1), probabilities.sum(-1) >= mass[:, 0]


def keep_min_p(scores: Tensor, positions: Positions) -> Tensor:
    """Keep tokens at least min_p times as probable as the most probable one."""
    probabilities = scores.softmax(-1)
    least = positions.column("min_p") * probabilities.amax(-1, keepdim=True)
    return scores.masked_fill(probabilities < least, -torch.inf)
