"""Published methods that corrupt the output, as faults: they are whole methods, not one mistake."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from draftproof.forensics.faults.base import Fault
from draftproof.forensics.verdicts import Kind

BASELINES = "draftproof.baselines"


def published() -> tuple[Fault, ...]:
    """BSP and DSD, where the baselines are part of the installation."""
    if find_spec(BASELINES) is None:
        return ()
    baselines: Any = import_module(BASELINES)
    return (
        Fault(
            name="bsp",
            kind=Kind.POSITIONS,
            story="the published BSP: rejected entries become holes that positions count",
            method=baselines.BSP(),
        ),
        Fault(
            name="dsd",
            kind=Kind.CORRECTION,
            story="the published DSD: the rejected draft token is emitted, the bonus dropped",
            method=baselines.DSD(),
        ),
    )
