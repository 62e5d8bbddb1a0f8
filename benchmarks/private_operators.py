#!/usr/bin/env python3
"""What each private operator of PyTorch brings: a model's rounds with it and without.

    python benchmarks/private_operators.py [--layers 30] [--dtype float32] [--threads N]

A random model of SmolLM2-135M's sizes is made ready once for every way of doing without something
(DRAFTPROOF_WITHOUT), with 200 cached tokens per row. All ways run the same round in turn, so that
whatever else the machine does hits them alike. Printed are median milliseconds and, as a ratio of
the two medians, how much longer a round takes than with everything. One JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import FAST
from draftproof.numerics.torch_private import WITHOUT
from draftproof.types import RaggedTokens

WAYS = {
    "everything": "",
    "no script": "script",
    "no packed linear": "packed-linear",
    "no short kernels": "short-kernels",
    "nothing": "all",
}
ROUNDS = ((1, 1), (1, 5), (8, 5), (1, 200))  # rows, tokens that each feeds
CONTEXT = 200
REPEATS = 15


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ready = {name: prepare(options, without) for name, without in WAYS.items()}
    table = [measure(ready, rows, count) for rows, count in ROUNDS]
    for (rows, count), times in zip(ROUNDS, table, strict=True):
        cells = (f"{name} {t:.1f} ({t / times['everything']:.2f})" for name, t in times.items())
        print(f"{rows} x {count}: {', '.join(cells)}")
    names = [f"{rows} x {count}" for rows, count in ROUNDS]
    print(json.dumps(vars(options) | {"ms": dict(zip(names, table, strict=True))}))


def prepare(options: argparse.Namespace, without: str) -> tuple[str, RowsExecutor]:
    """An executor whose rows are filled, and what must be set while it runs."""
    os.environ[WITHOUT] = without
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=options.layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=1024,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, options.dtype)).eval()
    bound = BoundModel(model, owned=True, lone_row=False)
    executor = RowsExecutor(model=bound, rows=8, capacity=2 * CONTEXT, shapes=FAST)
    for row in range(executor.rows):
        executor.forward(fed(executor, [row], CONTEXT))
    return without, executor


def fed(executor: RowsExecutor, rows: list[int], count: int) -> RaggedTokens:
    """Tokens behind what the rows have cached."""
    ids = torch.arange(len(rows) * count) % executor.vocab_size
    starts = [executor.lengths[row] for row in rows]
    every = [count] * len(rows)
    keep = [min(count, 5)] * len(rows)
    return RaggedTokens(ids=ids, rows=rows, starts=starts, counts=every, keep=keep)


def measure(ready: dict[str, tuple[str, RowsExecutor]], rows: int, count: int) -> dict[str, float]:
    """Median milliseconds of a round, every way in turn."""
    times: dict[str, list[float]] = {name: [] for name in ready}
    for repeat in range(REPEATS + 2):
        for name, (without, executor) in ready.items():
            os.environ[WITHOUT] = without
            tokens = fed(executor, list(range(rows)), count)
            start = time.perf_counter()
            executor.forward(tokens)
            if repeat > 1:  # the first ones set kernels up
                times[name].append(1000 * (time.perf_counter() - start))
            for row in range(rows):
                executor.truncate(row, CONTEXT)
    return {name: median(found) for name, found in times.items()}


if __name__ == "__main__":
    main()
