#!/usr/bin/env python3
"""Memory of a bulk run: is the peak the weights and the KV cache, and does it stay flat?

    python benchmarks/memory.py TARGET [--draft D] [--requests 1000] [--dtype float32]

Streams requests of mixed lengths through a few rows and reads the process's resident memory after
each tenth of them. Ends in one JSON line: MiB of weights and KV caches as `draftproof` logs them
before it allocates, and resident memory over the base: what Python, torch and transformers take
once the embedded demo pair has been decoded with. Resident after loading is told apart, because
transformers may read a checkpoint through a mapping whose pages count as resident, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random

import psutil
import torch

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
    pair = draftproof.load(arguments.target, arguments.draft, dtype=arguments.dtype)
    gc.collect()
    loaded = process.memory_info().rss - base
    draw = random.Random(0)
    prompts = [
        [draw.randrange(10, pair.vocab_size) for _ in range(draw.randrange(5, 120))]
        for _ in range(arguments.requests)
    ]
    options = {"max_new_tokens": arguments.max_new_tokens, "max_num_seqs": arguments.rows}
    options["num_speculative_tokens"] = 4
    job = pair.prepare(prompts, **options)
    for request in job.requests:
        job.engine.add(request)
    done, seen = 0, []
    for commits in job.engine.run():
        done += sum(commit.row.finish_reason is not None for commit in commits)
        if done >= (len(seen) + 1) * arguments.requests / 10:
            seen.append(round((process.memory_info().rss - base) / MIB))
    weights, kv = sum(job.plan.weight_bytes.values()), sum(job.plan.kv_bytes.values())
    budget = (weights + kv) / MIB
    print(
        json.dumps(
            {
                "requests": done,
                "weights_mib": round(weights / MIB),
                "kv_mib": round(kv / MIB, 1),
                "resident_mib_loaded": round(loaded / MIB),
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


if __name__ == "__main__":
    main()
