"""A model in another number format, for the float32 control."""

from __future__ import annotations

import copy
from typing import Any

import torch


def cast(model: Any, dtype: str) -> Any:
    """A copy in another dtype; what is no model (n-gram, a drafter, None) stays as it is.

    bfloat16 weights are float32 numbers as they are, so the copy computes the same function.
    """
    wanted = getattr(torch, dtype)
    if not isinstance(model, torch.nn.Module) or model.dtype == wanted:
        return model
    return copy.deepcopy(model).to(wanted)
