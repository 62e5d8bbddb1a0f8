"""Pure tensor functions that turn logits into the tokens a request asks for.

Shared by drafters and verifiers, which must not import each other: a draft is drawn from the same
processed distribution, with the same random numbers, as the token it is compared with.
"""

from draftproof.processing.best import BROKEN, best, unbroken
from draftproof.processing.noise import (
    Draw,
    exponential,
    position_key,
    race,
    stream_key,
    uniform,
)
from draftproof.processing.penalties import forbid_early_eos
from draftproof.processing.pipeline import OWN, PENALTIES, WARPERS, align, choose, keys, run
from draftproof.processing.positions import Positions

__all__ = [
    "BROKEN",
    "OWN",
    "PENALTIES",
    "WARPERS",
    "Draw",
    "Positions",
    "align",
    "best",
    "choose",
    "exponential",
    "forbid_early_eos",
    "keys",
    "position_key",
    "race",
    "run",
    "stream_key",
    "unbroken",
    "uniform",
]
