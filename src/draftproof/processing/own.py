"""A request's own logits processors, as transformers defines them."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.errors import InputError
from draftproof.processing.positions import Positions
from draftproof.sampling import Processor


def call_processors(scores: Tensor, positions: Positions) -> Tensor:
    """Call every row's processors, one position at a time, with the exact prefix, [1, length].

    They may keep state: the caller sees to it that a row's positions come in order, each once.
    Raises InputError, naming the processor, when what comes back is no [1, V] tensor.
    """
    prefixes = positions.prefixes()  # [n, T]
    pieces = []
    for index, (settings, length) in enumerate(
        zip(positions.settings, positions.lengths, strict=True)
    ):
        ids = prefixes[index : index + 1, prefixes.shape[1] - length :]
        piece = scores[index : index + 1].clone()  # a processor may write into it
        for processor in settings.logits_processor:
            piece = _checked(processor, processor(ids, piece), piece.shape)
        pieces.append(piece)
    return torch.cat(pieces)


def _checked(processor: Processor, scores: object, shape: torch.Size) -> Tensor:
    if isinstance(scores, Tensor) and scores.shape == shape:
        return scores
    found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    name = getattr(processor, "name", type(processor).__name__)
    raise InputError(f"logits processor {name} returned {found}, expected scores {list(shape)}")
