"""Which numerics tier a target runs in, and why."""

from __future__ import annotations

from typing import Any

from draftproof.engine.methods import Method
from draftproof.errors import NumericsError, UnsupportedArgumentError
from draftproof.executors.base import ForeignModel
from draftproof.executors.calibration import calibrate, require
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import FAST, Shapes

NUMERICS = ("exact", "fast", "auto")


def refuse_unanchored(method: Method, *parts: Any) -> None:
    """Raise UnsupportedArgumentError for a method that another runtime's memory cannot serve."""
    if not method.anchored and any(isinstance(part, ForeignModel) for part in parts):
        raise UnsupportedArgumentError(
            f"method={method.name!r} moves rows within a cache of PyTorch tensors; with "
            "executor='openvino' use method='rows'"
        )


def resolve_numerics(
    wish: str, target: BoundModel | ForeignModel, method: Method
) -> tuple[str, Shapes, str]:
    """The tier that runs, its shapes, and why. Raises NumericsError when exact is not to be had."""
    if wish == "fast":
        return "fast", FAST, "as asked"
    if not method.anchored:
        why = f"method {method.name!r} moves rows, which changes the order of sums"
        if wish == "exact":
            raise NumericsError(f"numerics='exact' needs method='rows': {why}")
        return "fast", FAST, why
    if wish == "auto" and target.device.type != "cpu":
        return "fast", FAST, f"exact numerics are promised on CPUs, not on {target.device.type}"
    verdict = target.calibrate() if isinstance(target, ForeignModel) else calibrate(target)
    if wish == "exact" or verdict.shapes is not None:
        return "exact", require(verdict), "calibrated on this machine"
    return "fast", FAST, f"{verdict.failing} depends on the other rows on this machine"
