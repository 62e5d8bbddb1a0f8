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

from draftproof.errors import UnsupportedModelError
from draftproof.executors.openvino.card import GRAPH, Card
from draftproof.executors.openvino.compiled import PagedGraph, Settings
from draftproof.executors.openvino.executor import PagedExecutor
from draftproof.executors.openvino.graph import mark_decompressions, narrow_constants
from draftproof.executors.openvino.tracing import trace
from draftproof.executors.proof import prove
from draftproof.hf import BoundModel, default_eos, load_model
from draftproof.numerics.store import folder as cache_folder
from draftproof.numerics.torch_private import TRACE, missing
from draftproof.sampling import as_ids
from draftproof.types import RaggedTokens

log = logging.getLogger("draftproof")

FORMAT = 2  # changes whenever this folder's way of converting does
CHUNK = 1 << 24  # bytes
TOLERANCE = 1e-3  # of the largest logit; float32 in another order of sums is off by 1e-6


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
    digest = hashlib.sha256(json.dumps([FORMAT, versions(), missing([TRACE])]).encode())
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


UNLIMITED = 1 << 40  # tokens


def _convert(model: Any, name: str, target: Path) -> None:
    """Convert a model that is used for nothing else into the folder `target`."""
    started = time.perf_counter()
    dtype = str(model.dtype).removeprefix("torch.")
    log.info("openvino: converting %s; this is done once", name)
    bound = BoundModel(model.float())
    # the graph is one for rows of every length
    prove(bound).require(length=bound.max_positions or UNLIMITED, together=0)
    bound.unpack()
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
    _write(graph, card, target, bound)
    del graph, bound
    gc.collect()  # graph and model hold each other
    log.info("openvino: converted %s in %.0f s", name, time.perf_counter() - started)


def _write(graph: Any, card: Card, target: Path, bound: BoundModel) -> None:
    """All files or none: other processes may convert the same model at the same time."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        ov.save_model(graph, draft / GRAPH, compress_to_fp16=False)
        mark_decompressions(draft / GRAPH)
        card.write(draft)
        _check(draft, card, bound)
        if target.exists() and not _complete(target):
            shutil.rmtree(target)
        if not target.exists():
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@torch.inference_mode()
def _check(folder: Path, card: Card, bound: BoundModel) -> None:
    """Raise UnsupportedModelError when the graph has other logits than the model.

    A trace holds what the example did; a model that looks at values, or at sizes that the example
    did not have, would be converted into another one. Two rows are fed raggedly, one of them over
    a block's end, taken back into the block before, and both go on.
    """
    most = min(40, card.max_positions or 40)
    lengths, kept, new = (5, most), (5, most - 7), (3, 2)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, card.vocab_size, (n + 3,), generator=generator) for n in lengths]
    graph = PagedGraph(folder=folder, card=card, settings=Settings(dtype="float32"))
    executor = PagedExecutor(model=graph, rows=2, capacity=most)
    for starts, counts in (((0, 0), lengths), (kept, new)):
        executor.truncate(0, starts[0])
        executor.truncate(1, starts[1])
        spans = zip(ids, starts, counts, strict=True)
        flat = torch.cat([row[start : start + count] for row, start, count in spans])
        logits = executor.forward(
            RaggedTokens(ids=flat, rows=[0, 1], starts=starts, counts=counts, keep=counts)
        )
    for row, start, count, found in zip(ids, kept, new, logits.split(new), strict=True):
        expected = bound.model(input_ids=row[None, : start + count]).logits[0, -count:].float()
        gap = (found - expected).abs().max() / expected.abs().max()
        if not gap < TOLERANCE:
            raise UnsupportedModelError(
                f"{card.name}: converted for OpenVINO it computes other logits than before (off by "
                f"{float(gap):.2g} of the largest); use executor='torch'"
            )
