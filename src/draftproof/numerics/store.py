"""Verdicts of the calibration, kept on disk: a machine is probed once per set of shapes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from draftproof.numerics.shapes import Rows, Shapes
from draftproof.numerics.torch_private import ARITHMETIC, missing

FORMAT = 10  # changes whenever the probes do


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a calibration found.

    shapes:   the rounding that makes rows independent, None when there is none
    failing:  the operation for which nothing holds
    """

    shapes: Shapes | None
    failing: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        shapes = data["shapes"]
        if shapes is not None:
            rules = {kind: Rows(tuple(rule["sizes"])) for kind, rule in shapes["products"].items()}
            barred = tuple(shapes["barred"])
            shapes = Shapes(**shapes | {"products": rules, "barred": barred})
        return cls(shapes=shapes, failing=data["failing"])


def machine() -> dict[str, str | int]:
    """What a verdict depends on beside the shapes: processor, library, threads."""
    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "without": ", ".join(missing(ARITHMETIC)) or "nothing",  # of what PyTorch keeps private
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    # family and model tell what the marketing name hides
    wanted = ("model name", "cpu family", "model\t", "CPU part")
    found = [line.split(":", 1)[1].strip() for line in lines[:40] if line.startswith(wanted)]
    return " ".join(found[:3]) or platform.machine()


def folder() -> Path:
    """`$DRAFTPROOF_CACHE`, else `draftproof` in the user's cache folder."""
    own = os.environ.get("DRAFTPROOF_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "draftproof"


def key_of(description: dict[str, Any]) -> str:
    """Name of the file for a machine and a set of operations."""
    text = json.dumps({"format": FORMAT, **machine(), **description}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def recall(key: str) -> Verdict | None:
    """A verdict of an earlier run; None when there is none, or the file is damaged."""
    try:
        data = recall_json(key)
        return None if data is None else Verdict.from_json(data)
    except (ValueError, KeyError, TypeError):
        return None


def keep(key: str, verdict: Verdict) -> None:
    """Store a verdict; a cache that cannot be written is no reason to fail."""
    keep_json(key, verdict.as_json())


def recall_json(key: str) -> dict[str, Any] | None:
    """What an earlier run has kept; None when there is nothing, or the file is damaged."""
    try:
        data = json.loads((folder() / f"{key}.json").read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def keep_json(key: str, data: dict[str, Any]) -> None:
    """Store what was found; a cache that cannot be written is no reason to fail."""
    path = folder() / f"{key}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(data, indent=1))
        draft.replace(path)
    except OSError:
        return
