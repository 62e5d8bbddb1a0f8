"""Converted models on disk: made once per model and version, found again by what is in the model.

A graph is kept in float32 arithmetic with its weights in the type of the checkpoint; in which type
it computes is decided when it is compiled.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from torch import nn

from draftproof.executors.openvino.card import Card
from draftproof.executors.openvino.graph import narrow_constants
from draftproof.executors.openvino.tracing import trace
from draftproof.hf import BoundModel, default_eos, load_model
from draftproof.numerics.store import folder as cache_folder
from draftproof.sampling import as_ids

log = logging.getLogger("draftproof")

FORMAT = 1  # changes whenever this folder's way of converting does
GRAPH = "openvino_model.xml"  # optimum's name too
CHUNK = 1 << 24  # bytes


def is_export(folder: Path) -> bool:
    """Whether a folder holds a graph that others exported."""
    return (folder / GRAPH).is_file()


def converted(source: str | Path | nn.Module, model_kwargs: dict[str, Any] | None = None) -> Path:
    """The folder with the converted model, from the cache when it was converted before.

    source:  a folder, a hub id, or a loaded model. A folder is looked at without loading it; a
             loaded model stays as it is.

    Raises UnsupportedModelError when the model cannot be converted.
    """
    plain = not model_kwargs and not isinstance(source, nn.Module)
    if plain and Path(str(source)).is_dir():
        target = _place(_files_in(Path(str(source))))
        if not _complete(target):
            _convert(_loaded(str(source), {}), str(source), target)
        return target
    model = source if isinstance(source, nn.Module) else _loaded(str(source), model_kwargs or {})
    target = _place(_state_of(model))
    if not _complete(target):
        # tracing switches attention and linears over: not in a model that others use
        model = copy.deepcopy(model) if isinstance(source, nn.Module) else model
        name = getattr(model.config, "_name_or_path", "") or type(model).__name__
        _convert(model, name, target)
    return target


def _loaded(name: str, model_kwargs: dict[str, Any]) -> Any:
    log.info("openvino: loading %s to convert it", name)
    return load_model(name, dtype="auto", device="cpu", model_kwargs=model_kwargs)


# -- where a conversion lies


def _place(parts: Iterable[bytes | memoryview]) -> Path:
    digest = hashlib.sha256(json.dumps([FORMAT, versions()]).encode())
    for part in parts:
        digest.update(part)
    return cache_folder() / "openvino" / digest.hexdigest()[:24]


def versions() -> dict[str, str]:
    """What a converted model depends on beside the model."""
    names = ("openvino", "torch", "transformers")
    return {name: importlib.metadata.version(name) for name in names}


def _files_in(folder: Path) -> Iterable[bytes]:
    """Names and contents of a model's configuration and weights."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".bin", ".gguf", ".py"):
            yield path.name.encode()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk


def _state_of(model: Any) -> Iterable[bytes | memoryview]:
    """Configuration and weights of a loaded model."""
    yield model.config.to_json_string().encode()
    yield str(as_ids(default_eos(model))).encode()
    for name, tensor in model.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


def _complete(folder: Path) -> bool:
    try:
        Card.read(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return is_export(folder)


# -- making one


def _convert(model: Any, name: str, target: Path) -> None:
    """Convert a model that is used for nothing else into the folder `target`."""
    started = time.perf_counter()
    dtype = str(model.dtype).removeprefix("torch.")
    log.info("openvino: converting %s; this is done once", name)
    bound = BoundModel(model.float())
    bound.release()
    graph, layers = trace(bound)
    narrow_constants(graph)
    card = Card(
        name=name,
        dtype=dtype,
        vocab_size=bound.vocab_size,
        max_positions=bound.max_positions,
        eos=as_ids(default_eos(model)),
        layers=layers,
        versions=versions(),
    )
    _write(graph, card, target)
    del graph, bound
    gc.collect()  # graph and model hold each other
    log.info("openvino: converted %s in %.0f s", name, time.perf_counter() - started)


def _write(graph: Any, card: Card, target: Path) -> None:
    """All files or none: other processes may convert the same model at the same time."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        ov.save_model(graph, draft / GRAPH, compress_to_fp16=False)
        card.write(draft)
        if target.exists() and not _complete(target):
            shutil.rmtree(target)
        if not target.exists():
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
