"""Shapes under which a kernel's result for one row does not depend on the other rows."""

from draftproof.numerics.shapes import FAST, Shapes

__all__ = ["FAST", "Shapes"]
