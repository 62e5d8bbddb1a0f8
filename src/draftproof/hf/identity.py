"""What a model is, so that what was found out about it can be kept: code, settings, weights."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WHOLE = 4096  # numbers of a tensor up to which all of them count
SAMPLED = 512  # of larger ones
# settings whose value may be a number of tokens at which something changes
OF_LENGTH = re.compile(r"(window|chunk|position|floor|context|seq_len|model_max|n_ctx)(?!.*layers)")


def fingerprint(model: nn.Module) -> str:
    """A digest of the weights: small tensors whole, of large ones numbers all over.

    A change that spares every sampled number of a large tensor is not noticed.
    """
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if not tensor.is_meta:
            digest.update(_sample(tensor.detach()))
    return digest.hexdigest()


def _sample(tensor: Tensor) -> bytes:
    if tensor.numel() > WHOLE:
        step = torch.arange(SAMPLED, device=tensor.device)
        places = step * (tensor.numel() - 1) // (SAMPLED - 1)
        tensor = tensor[torch.unravel_index(places, tensor.shape)]
    return tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def identity(model: Any, judge: Any, weights: str) -> dict[str, Any]:
    """Code, settings and weights of a model, as text.

    judge: the same, or a wrapper around it
    """
    classes = {type(module) for part in (judge, model) for module in part.modules()}
    names = sorted(f"{c.__module__}.{c.__qualname__}" for c in classes)
    return {
        "model": f"{type(judge).__qualname__} {type(model).__qualname__}",
        "classes": hashlib.sha256("\n".join(names).encode()).hexdigest(),
        "sources": _sources(frozenset(c.__module__ for c in classes)),
        "config": _settings(model.config),
        "attention": sorted({str(c._attn_implementation) for c in _configs(model)}),
        "adapters": repr(getattr(judge, "peft_config", None)),
        "patched": sorted(_patched(model)),
        "weights": weights,
        "dtype": str(model.dtype),
        "device": str(next(model.parameters()).device),
        "transformers": transformers.__version__,
    }


def _configs(model: nn.Module) -> Iterator[Any]:
    return (m.config for m in model.modules() if hasattr(m, "config"))


def _settings(config: Any) -> str:
    return json.dumps(config.to_dict(), sort_keys=True, default=repr)


def _patched(model: nn.Module) -> Iterator[str]:
    """Functions that were put in the place of the classes' own."""
    for name, module in model.named_modules():
        for attribute in ("forward", "generate", "prepare_inputs_for_generation"):
            if attribute in vars(module):
                value = vars(module)[attribute]
                yield f"{name}.{attribute}: {getattr(value, '__qualname__', type(value).__name__)}"


@functools.cache
def _sources(modules: frozenset[str]) -> str:
    """Digest of this package's files, and of those of classes that no version number names."""
    package = Path(__file__).parent.parent
    files = [
        file for room in ("hf", "executors", "numerics") for file in package.glob(f"{room}/*.py")
    ]
    for name in modules:
        if name.split(".")[0] not in ("torch", "transformers", package.name):
            file = getattr(sys.modules.get(name), "__file__", None)
            files += [] if file is None else [Path(file)]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def settings_of_length(config: Any) -> list[int]:
    """Numbers in a configuration that may be lengths at which a model changes, ascending."""
    return sorted(set(_numbers(config.to_dict())))


def _numbers(settings: Any) -> Iterator[int]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and OF_LENGTH.search(str(name)) and value > 1:
            yield int(value)
