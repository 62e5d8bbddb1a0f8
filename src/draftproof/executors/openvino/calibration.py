"""Under which shapes a row's logits do not depend on the other rows: found by asking the model.

In OpenVINO two things may add up otherwise in another call: matrix products, by the number of
tokens, and paged attention, which has a kernel of its own for rows that feed a single token. So
the model is run with every number of tokens that will be allowed, and two tokens of a row are
compared, bit by bit; then, under the rule found, a row is fed whole, in pieces, token by token and
beside another one. The whole model runs: what its layers do to a difference is the only thing that
could hide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import openvino as ov
import torch
from torch import Tensor

from draftproof.executors.openvino.card import GRAPH
from draftproof.executors.openvino.executor import PagedExecutor
from draftproof.executors.openvino.feeding import FORWARD
from draftproof.numerics.shapes import Rows, Shapes
from draftproof.numerics.store import Verdict, keep, key_of, recall
from draftproof.types import RaggedTokens

if TYPE_CHECKING:
    from draftproof.executors.openvino.compiled import PagedGraph

FORMAT = 1  # changes whenever the probes do
LEAST = 2  # tokens of a row that keep it out of the kernel for single tokens
SIZES = (*range(2, 17), *range(20, 65, 4), *range(96, 257, 32))  # tokens of a call
FIRST = 24  # cached tokens of the row that is compared over the sizes
SHORT = 300  # tokens of the row that is fed in pieces: ten blocks
BEYOND = 70  # and past the end of the longest sliding window
WIDEST = 2000  # windows beyond are not reached
COMPARED = 128  # logits of the last tokens
SINGLE = 12  # tokens at the end of a row that are fed one by one
PIECES = (37, 3, 2, 70, 9, 5, 1, 16, 33, 4)
BESIDE = (13, 1, 5, 90, 2, 7)

Step = list[tuple[int, int]]  # rows of one forward, and how many tokens each feeds


def calibrate(model: PagedGraph, *, fresh: bool = False) -> Verdict:
    """The verdict for a model on this machine, from disk when it was reached before.

    fresh: probe again even so
    """
    if model.kv_cache_dtype == "uint8":
        return Verdict(shapes=None, failing="a KV cache that rounds a block's keys together")
    key = _key(model)
    verdict = None if fresh else recall(key)
    if verdict is None:
        verdict = _probe(model)
        keep(key, verdict)
    return verdict


def _key(model: PagedGraph) -> str:
    files = [model.folder / GRAPH, (model.folder / GRAPH).with_suffix(".bin")]
    return key_of(
        {
            "openvino": [FORMAT, ov.get_version()],
            # a conversion's folder is named by its contents; an export may be written anew
            "graph": [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
            "dtype": [model.dtype_name, model.kv_cache_dtype],
            "threads of a forward": model.num_threads,
        }
    )


@torch.inference_mode()
def _probe(model: PagedGraph) -> Verdict:
    rule = _rule(model)
    if rule is None:
        return Verdict(shapes=None, failing="a matrix product (FullyConnected)")
    shapes = Shapes(products={FORWARD: rule}, least=LEAST)
    if not _holds(model, shapes):
        return Verdict(shapes=None, failing="paged attention (PagedAttentionExtension)")
    return Verdict(shapes=shapes)


def _length(model: PagedGraph) -> int:
    """Tokens of the row that is fed in pieces."""
    windows = [layer.window for layer in model.card.layers or () if layer.window < WIDEST]
    wanted = max(SHORT, max(windows, default=0) + BEYOND)
    return min(wanted, model.max_positions or wanted)


def _rule(model: PagedGraph) -> Rows | None:
    """Numbers of tokens, and of logits, that give a row the same bits; the largest such set.

    None when no two agree.
    """
    room = model.max_positions or SIZES[-1]
    first = max(1, min(FIRST, room - LEAST))
    sizes = [size for size in SIZES if size - LEAST <= room]
    executor = PagedExecutor(model=model, rows=2, capacity=max(first + LEAST, sizes[-1]))
    ids = _ids(model, 2, executor.capacity)
    _forward(executor, ids, [(0, first)], [0])
    classes: list[tuple[Tensor, list[int]]] = []
    for size in sizes:
        executor.truncate(0, first)
        executor.release(1)
        step = [(0, LEAST), (1, size - LEAST)] if size > LEAST else [(0, LEAST)]
        logits = _forward(executor, ids, step, [count for _, count in step])[:LEAST]
        for known, members in classes:
            if torch.equal(known, logits):
                members.append(size)
                break
        else:
            classes.append((logits.clone(), [size]))
    found = max((members for _, members in classes), key=len)
    return Rows(tuple(found)) if len(found) > 1 else None


def _holds(model: PagedGraph, shapes: Shapes) -> bool:
    """Whether a row keeps its bits in pieces, token by token, and beside another row."""
    length = _length(model)
    executor = PagedExecutor(model=model, rows=2, capacity=length, shapes=shapes)
    ids = _ids(model, 2, length)
    kept = min(length, COMPARED)
    expected = _run(executor, ids, [[(0, length)]], kept)
    others = (_pieces(length), _beside(length))
    return all(torch.equal(_run(executor, ids, steps, kept), expected) for steps in others)


def _pieces(length: int) -> list[Step]:
    """Row 0 alone, in pieces of many sizes, the last tokens one by one."""
    single = min(SINGLE, length - 1)
    return [[(0, count)] for count in (*_cut(length - single, PIECES), *[1] * single)]


def _beside(length: int) -> list[Step]:
    """The same beside a row in pieces of other sizes."""
    others = iter(_cut(length, BESIDE))
    steps = []
    for step in _pieces(length):
        count = next(others, 0)
        steps.append([*step, (1, count)] if count else step)
    return steps


def _cut(length: int, counts: Sequence[int]) -> Iterator[int]:
    """`length` in pieces of these sizes, in turns."""
    turn = 0
    while length:
        count = min(length, counts[turn % len(counts)])
        yield count
        length -= count
        turn += 1


def _run(executor: PagedExecutor, ids: Tensor, steps: Sequence[Step], kept: int) -> Tensor:
    """Logits of row 0's last `kept` tokens, [kept, V]."""
    executor.release(0)
    executor.release(1)
    total, found = sum(count for step in steps for row, count in step if row == 0), []
    for step in steps:
        end = executor.lengths[0] + step[0][1]
        keep = min(step[0][1], max(0, end - (total - kept)))
        found.append(_forward(executor, ids, step, [keep] + [0] * (len(step) - 1)))
    return torch.cat(found)


def _forward(executor: PagedExecutor, ids: Tensor, step: Step, keep: Sequence[int]) -> Tensor:
    """Feed the next tokens of some rows; logits of the kept ones."""
    rows, counts = [row for row, _ in step], [count for _, count in step]
    starts = [executor.lengths[row] for row in rows]
    flat = [ids[r, s : s + n] for r, s, n in zip(rows, starts, counts, strict=True)]
    return executor.forward(
        RaggedTokens(ids=torch.cat(flat), rows=rows, starts=starts, counts=counts, keep=keep)
    )


def _ids(model: PagedGraph, rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.vocab_size, (rows, length), generator=generator)
