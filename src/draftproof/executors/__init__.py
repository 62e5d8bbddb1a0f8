"""SCORE: a model and its memory, behind one Protocol."""

from draftproof.executors.base import Executor

__all__ = ["Executor"]
