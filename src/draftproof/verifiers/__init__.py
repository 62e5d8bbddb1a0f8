"""JUDGE: pure tensor functions, no model, no cache."""

from draftproof.verifiers.base import Verifier
from draftproof.verifiers.greedy import GreedyVerifier
from draftproof.verifiers.sampling import SamplingVerifier

__all__ = ["GreedyVerifier", "SamplingVerifier", "Verifier"]
