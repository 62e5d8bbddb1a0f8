"""PROPOSE: whatever guesses the next tokens."""

from draftproof.drafters.base import Drafter
from draftproof.drafters.model import ModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter

__all__ = ["Drafter", "ModelDrafter", "NgramDrafter", "NoDrafter"]
