"""JUDGE: pure tensor functions, no model, no cache."""

from draftproof.verifiers.base import Verifier
from draftproof.verifiers.greedy import GreedyVerifier

__all__ = ["GreedyVerifier", "Verifier"]
