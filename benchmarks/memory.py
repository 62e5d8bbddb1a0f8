#!/usr/bin/env python3
"""Memory of a bulk run: is the peak the weights and the KV cache, and does it stay flat?

    python benchmarks/memory.py TARGET [--draft D] [--requests 1000] [--dtype float32]

Streams requests of mixed lengths through a few rows and reads the process's resident memory after
each tenth of them. Ends in one JSON line: MiB of weights (float32 copies of 16-bit weights
included), of the KV caches as logged before allocation, and resident memory over the base: what
Python, torch and transformers take once the embedded demo pair has been decoded with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM

import draftproof
from draftproof.models import demo_paths

MIB = 2**20


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-new-tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warm_up()
    process = psutil.Process()
    base = process.memory_info().rss
    models = [load(name, arguments.dtype) for name in (arguments.target, arguments.draft) if name]
    pair = draftproof.Pair(*models)
    weights = sum(size(model) for model in models)
    draw = random.Random(0)
    prompts = [
        [draw.randrange(10, pair.vocab_size) for _ in range(draw.randrange(5, 120))]
        for _ in range(arguments.requests)
    ]
    options = {"max_new_tokens": arguments.max_new_tokens, "max_num_seqs": arguments.rows}
    job = pair.prepare(prompts, **options)
    for request in job.requests:
        job.engine.add(request)
    done, seen = 0, []
    for commits in job.engine.run():
        done += sum(commit.row.finish_reason is not None for commit in commits)
        if done >= (len(seen) + 1) * arguments.requests / 10:
            seen.append(round((process.memory_info().rss - base) / MIB))
    executors = [job.engine.target, getattr(job.engine.drafter, "executor", None)]
    kv = sum(size_of(cached(executor)) for executor in executors if executor is not None)
    budget = (weights + kv) / MIB
    print(
        json.dumps(
            {
                "requests": done,
                "weights_mib": round(weights / MIB),
                "kv_mib": round(kv / MIB, 1),
                "resident_mib_by_tenth": seen,
                "peak_over_weights_and_kv": round(max(seen) / budget, 3),
                "growth_from_second_tenth": round(seen[-1] / seen[1], 3),
            }
        )
    )


def warm_up() -> None:
    """Have every library load its code and buffers before the base is read."""
    pair = draftproof.load(*demo_paths(), dtype="float32")
    pair.generate(["The", "Return a new list of"], max_new_tokens=8)


def load(name: str, dtype: str) -> torch.nn.Module:
    """A model in evaluation mode."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval()
    return model


def size(model: torch.nn.Module) -> int:
    """Bytes of a model's parameters and of float32 copies of them, tied ones once."""
    wide = {id(m.wide): m.wide for m in model.modules() if getattr(m, "wide", None) is not None}
    return size_of([*model.parameters(), *wide.values()])


def size_of(tensors: list[torch.Tensor]) -> int:
    """Bytes of some tensors."""
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def cached(executor: Any) -> list[torch.Tensor]:
    """Keys and values of an executor."""
    return [*executor.cache.keys, *executor.cache.values]


if __name__ == "__main__":
    main()
