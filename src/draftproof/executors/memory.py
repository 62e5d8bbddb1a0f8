"""How much memory a KV cache may take."""

from __future__ import annotations

import psutil
import torch


def free_bytes(device: torch.device) -> int | None:
    """Bytes free on a device; None where nobody can tell."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return None
