"""An executor on OpenVINO's paged attention: flat ragged tokens, blocks of keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch import Tensor

from draftproof.errors import OutOfMemoryError
from draftproof.executors.lengths import check_lengths, refuse_longer, refuse_misfit
from draftproof.executors.openvino.blocks import BlockPool
from draftproof.executors.openvino.compiled import PagedGraph
from draftproof.executors.openvino.feeding import Feed, feeds
from draftproof.executors.openvino.graph import KEEP
from draftproof.numerics.shapes import FAST, Shapes
from draftproof.types import RaggedTokens

JUNK = 1e4  # as for the PyTorch executors: large and finite
JUNK_BYTE = 0x47
ALIGNED = 64  # bytes, as OpenVINO's own tensors


@dataclass(kw_only=True)
class PagedExecutor:
    """Rows of one model, each in blocks of its own.

    A round feeds the ragged tokens as they are. Rollback is a smaller length: what lies behind it
    in a row's last block is stale, and never read.

    rows, capacity:  sequences at a time, and tokens of each
    free:            bytes the KV cache may take, None to skip the check
    shapes:          rules under which rows do not depend on one another; the default has none
    """

    model: PagedGraph
    rows: int
    capacity: int
    free: int | None = None
    shapes: Shapes = FAST
    lengths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [0] * self.rows
        self.known: list[list[int]] = [[] for _ in range(self.rows)]  # ids of what is cached
        self.vocab_size = self.model.vocab_size
        self.device = self.model.device
        self._refuse_size()
        self.pool = BlockPool(
            blocks=self.model.blocks(self.rows, self.capacity) + self._fillers,
            block_size=self.model.block_size,
            rows=self.rows + self._fillers,
        )
        for filler in range(self._fillers):
            self.pool.grow(self.rows + filler, 1)
        self._request = self.model.compiled.create_infer_request()
        self._names = {n for port in self.model.compiled.inputs for n in port.get_names()}
        self.caches = self._allocate()

    @property
    def _fillers(self) -> int:
        """Rows of one block behind the others, which fill calls up."""
        return 1 if self.shapes.products else 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self.model.kv_bytes(self.rows, self.capacity)

    def _refuse_size(self) -> None:
        need = self.kv_bytes
        if self.free is not None and need > self.free:
            per_row = need // self.rows
            raise OutOfMemoryError(
                f"the KV cache of {self.rows} rows x {self.capacity} tokens needs "
                f"{need / 2**20:,.0f} MiB and {self.free / 2**20:,.0f} MiB are free; "
                f"max_num_seqs={self.free // per_row} would fit, or a max_model_len of "
                f"{self.capacity * self.free // need}"
            )

    def _allocate(self) -> dict[str, Any]:
        """Keys and values of every layer, [blocks, kv_heads, block_size, dim], zeroed."""
        caches = {}
        for name, (kind, shape) in self.model.caches.items():
            tensor = _zeros(kind, [self.pool.blocks, *shape[1:]])
            self._request.set_tensor(name, tensor)
            caches[name] = tensor
        return caches

    def forward(self, tokens: RaggedTokens) -> Tensor:
        """Feed tokens and cache them; return the kept tokens' logits, [sum(keep), V].

        The logits are valid until the next forward.
        """
        refuse_misfit(tokens, self.lengths, self.capacity)
        try:
            for row, start, count in zip(tokens.rows, tokens.starts, tokens.counts, strict=True):
                self.pool.grow(row, start + count)
            found = [self._call(feed) for feed in feeds(tokens, self.known, self.shapes, self.rows)]
        except BaseException:
            for row in tokens.rows:
                self.pool.trim(row, self.lengths[row])
            raise
        self._advance(tokens)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _call(self, feed: Feed) -> Tensor:
        """One call of the graph, [len(feed.kept), V]."""
        self._feed(feed)
        # `infer` would hide an exception of the plugin and leave the last call's output
        self._request.start_async()
        self._request.wait()
        logits = torch.from_numpy(self._request.get_output_tensor(0).data)
        return logits.view(-1, self.vocab_size)[: feed.wanted].clone()

    def _feed(self, feed: Feed) -> None:
        tables = [self.pool.tables[row] for row in feed.rows]
        spans = list(zip(feed.starts, feed.counts, strict=True))
        inputs = {
            "input_ids": feed.ids,
            "position_ids": np.concatenate([np.arange(s, s + n) for s, n in spans]),
            "past_lens": np.array(feed.starts, np.int32),
            "subsequence_begins": _begins(feed.counts),
            "block_indices": np.array([b for table in tables for b in table], np.int32),
            "block_indices_begins": _begins([len(table) for table in tables]),
            "max_context_len": np.array(max(s + n for s, n in spans), np.int32),
            KEEP: np.array(feed.kept, np.int64),
        }
        for name, array in inputs.items():
            if name in self._names or name != "position_ids":  # an export may lack positions
                self._request.set_tensor(name, ov.Tensor(array))

    def _advance(self, tokens: RaggedTokens) -> None:
        parts = tokens.ids.split(list(tokens.counts))
        for row, count, ids in zip(tokens.rows, tokens.counts, parts, strict=True):
            self.lengths[row] += count
            if self.shapes.least > 1:  # nobody else feeds a cached token again
                self.known[row] += ids.tolist()

    def truncate(self, row: int, length: int) -> None:
        """Forget all but the first `length` tokens of a row; whole blocks go back to the pool."""
        refuse_longer(row, length, self.lengths)
        self._forget(row, length)

    def release(self, row: int) -> None:
        """Forget a row; its blocks go to whoever needs them next."""
        self._forget(row, 0)

    def _forget(self, row: int, length: int) -> None:
        self.lengths[row] = length
        self.pool.trim(row, length)
        del self.known[row][length:]

    def check(self) -> None:
        """Every block has one owner, and every row as many as its length needs."""
        check_lengths(self.lengths, self.capacity)
        self.pool.check(self.lengths + [1] * self._fillers)

    def poison(self) -> None:
        """Overwrite free blocks, and what is stale in the others, with junk (debug and tests)."""
        size = self.pool.block_size
        for tensor in self.caches.values():
            values, junk = _values_of(tensor)
            values[self.pool.free] = junk
            if tensor.element_type == ov.Type.u8:
                continue  # scales lie among the codes: only whole blocks are junk
            for table, length in zip(self.pool.tables, self.lengths, strict=False):
                if length % size:
                    values[table[-1], :, length % size :] = junk


def _begins(counts: Any) -> Any:
    """Where each row begins, and where the last one ends, [R + 1] int32."""
    return np.fromiter(accumulate(counts, initial=0), np.int32)


def _zeros(kind: Any, shape: list[int]) -> Any:
    """A tensor of zeros, which take no memory until something is written there.

    Blocks are given out lowest number first, so that rows that stay short leave the rest untouched.
    """
    size = kind.size * math.prod(shape)
    room = np.zeros(size + ALIGNED, np.uint8)
    begin = -room.ctypes.data % ALIGNED
    return ov.Tensor(room[begin : begin + size], ov.Shape(shape), kind)


def _values_of(tensor: Any) -> tuple[Any, Any]:
    """A view of a cache, [blocks, kv_heads, block_size, dim], and junk of its type."""
    kind, shape = tensor.element_type, list(tensor.shape)
    if kind == ov.Type.u8:
        return tensor.data, JUNK_BYTE
    if kind == ov.Type.bf16:  # numpy has no such type: the upper half of a float32
        bits = np.array([JUNK], np.float32).view(np.uint32)[0] >> 16
        return tensor.data.view(np.uint16).reshape(shape), np.uint16(bits)
    return tensor.data, JUNK
