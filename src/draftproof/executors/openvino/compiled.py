"""A model that OpenVINO runs: opened, compiled, and ready to be given a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from openvino._offline_transformations import paged_attention_transformation

from draftproof.errors import UnsupportedModelError
from draftproof.executors.openvino.card import GRAPH, Card
from draftproof.executors.openvino.graph import gather_kept, page
from draftproof.executors.openvino.quantisation import GROUP, round_weights

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
CACHE_PRECISIONS = PRECISIONS | {"uint8": "u8"}
WEIGHTS = ("auto", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a model is compiled.

    dtype:            "float32", "bfloat16", "float16", or "auto": what the checkpoint says
    kv_cache_dtype:   the same, or "uint8", which rounds; "auto": as `dtype`
    num_threads:      None: as many as PyTorch uses, so that neither waits for the other's
    weights:          "auto": as in the graph; "int8": rounded to 8 bits, for drafts
    """

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    num_threads: int | None = None
    weights: str = "auto"


@dataclass(kw_only=True)
class PagedGraph:
    """A converted graph. Several executors may use one; it is compiled at the first use.

    folder:  with the graph
    card:    what is known of it
    """

    folder: Path
    card: Card
    settings: Settings

    @property
    def name(self) -> str:
        """As the user named it."""
        return self.card.name

    @property
    def vocab_size(self) -> int:
        """Size of the logits."""
        return self.card.vocab_size

    @property
    def max_positions(self) -> int | None:
        """Context length of the model, None when its config does not say."""
        return self.card.max_positions

    @property
    def eos(self) -> Sequence[int]:
        """Ids that end a row by default."""
        return self.card.eos

    @property
    def device(self) -> torch.device:
        """Where ids and logits are."""
        return torch.device("cpu")

    @property
    def dtype_name(self) -> str:
        """In what it computes."""
        wish = self.settings.dtype
        return self.card.dtype if wish == "auto" else wish

    @property
    def dtype(self) -> torch.dtype:
        """In what it computes."""
        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @property
    def kv_cache_dtype(self) -> str:
        """In what keys and values are kept."""
        wish = self.settings.kv_cache_dtype
        return self.dtype_name if wish == "auto" else wish

    @property
    def rounded(self) -> bool:
        """Whether weights are rounded to 8 bits when the graph is opened."""
        return self.settings.weights == "int8"

    @property
    def num_threads(self) -> int:
        """Threads of a forward."""
        return self.settings.num_threads or torch.get_num_threads()

    @cached_property
    def compiled(self) -> Any:
        """The graph with paged attention, compiled for the CPU."""
        core = ov.Core()
        graph = core.read_model(self.folder / GRAPH)
        if self.card.layers is None:
            _page_export(graph, self.folder)
        else:
            page(graph, self.card.layers)
            gather_kept(graph)
        if self.rounded:
            round_weights(graph)
        return core.compile_model(graph, "CPU", self.properties)

    @property
    def properties(self) -> dict[str, Any]:
        """What the plugin is asked for. Nothing is left to its defaults that changes a number."""
        return {
            "INFERENCE_PRECISION_HINT": PRECISIONS[self.dtype_name],
            "KV_CACHE_PRECISION": CACHE_PRECISIONS[self.kv_cache_dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if self.rounded else 0,
            "INFERENCE_NUM_THREADS": self.num_threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # the cores are shared with PyTorch's threads
        }

    @cached_property
    def caches(self) -> dict[str, tuple[Any, list[int]]]:
        """Element type and shape of one block, [1, kv_heads, block_size, dim], by input name."""
        found = {}
        for port in self.compiled.inputs:
            name = port.get_any_name()
            if "_cache." in name:
                dims = port.get_partial_shape()
                shape = [1, *(dims[axis].get_length() for axis in (1, 2, 3))]
                found[name] = port.get_element_type(), shape
        return found

    @property
    def block_size(self) -> int:
        """Tokens per block of the cache."""
        return next(shape[2] for name, (_, shape) in self.caches.items() if "value" in name)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(
            kind.size * shape[1] * shape[2] * shape[3] for kind, shape in self.caches.values()
        )

    def blocks(self, rows: int, capacity: int) -> int:
        """Blocks for `rows` rows of `capacity` tokens."""
        return rows * -(-capacity // self.block_size)

    def kv_bytes(self, rows: int, capacity: int) -> int:
        """Size of the KV cache of `rows` rows of `capacity` tokens, in bytes."""
        return self.blocks(rows, capacity) * self.block_bytes


def _page_export(graph: Any, folder: Path) -> None:
    try:
        paged_attention_transformation(graph)
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"{folder}: OpenVINO finds no attention in this graph that it can page; export it with "
            "past keys and values, or give the model itself"
        ) from error
    gather_kept(graph)
