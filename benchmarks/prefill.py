#!/usr/bin/env python3
"""How fast prompts are read: ours beside other engines, in prompt tokens per second.

    python benchmarks/prefill.py MODELS [--target smollm2] [--output F.jsonl]
        [--engines exact,fast,openvino,transformers,vllm,genai] [--python vllm=PATH ...]

Every engine gets the same random token ids, a batch at a time, and writes one token per prompt, in
bfloat16, in a process of its own; the best of three goes through every batch. GenAI reads
MODELS/ov_TARGET, which `optimum-cli export openvino --weight-format fp16` writes. One JSON line
per engine; nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCHES = {"16 x 64": [64] * 16, "8 x 256": [256] * 8, "4 x 1000": [1000] * 4}
VOCABULARY = 40_000  # all models measured here have more
TRIES = 3

Read = Callable[[list[list[int]]], object]


def main() -> None:
    """All engines, each in its own process; or one of them, in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--engines", default="exact,fast,transformers")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--python", action="append", default=[], help="ENGINE=PYTHON")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(measured(options)), flush=True)
        return
    pythons = dict(word.split("=", 1) for word in options.python)
    lines = [apart(pythons.get(name, sys.executable), name) for name in options.engines.split(",")]
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)


def apart(python: str, name: str) -> str:
    """The line of one engine; what went wrong is a line too."""
    command = [python, *sys.argv, "--engine", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith('{"engine"')]
    line = found[-1] if found else json.dumps({"engine": name, "error": done.stderr[-300:]})
    print(line, flush=True)
    return line


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Prompt tokens per second by batch."""
    read, draw = ENGINES[options.engine](options), random.Random(0)
    line: dict[str, Any] = {"engine": options.engine, "target": options.target}
    for name, lengths in BATCHES.items():
        times = []
        for _ in range(TRIES):  # other ids each time: nothing was read before
            ids = [[draw.randrange(5, VOCABULARY) for _ in range(length)] for length in lengths]
            start = time.perf_counter()
            read(ids)
            times.append(time.perf_counter() - start)
        line[name] = round(sum(lengths) / min(times))
    return line


def ours(options: argparse.Namespace, numerics: str, executor: str = "torch") -> Read:
    """draftproof."""
    import torch

    import draftproof

    torch.set_num_threads(options.threads)
    folder = options.models / options.target
    pair = draftproof.load(folder, dtype="bfloat16", numerics=numerics, executor=executor)
    return lambda ids: pair.generate(ids, max_new_tokens=1, max_num_seqs=len(ids))


def transformers(options: argparse.Namespace) -> Read:
    """`generate`."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    folder = options.models / options.target
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def read(ids: list[list[int]]) -> object:
        tokens = torch.tensor(ids)
        mask = torch.ones_like(tokens)
        return model.generate(
            tokens, attention_mask=mask, max_new_tokens=1, do_sample=False, pad_token_id=0
        )

    return read


def vllm(options: argparse.Namespace) -> Read:
    """vLLM's CPU build."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(options.models / options.target),
        dtype="bfloat16",
        max_model_len=1100,
        max_num_seqs=16,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    params = SamplingParams(temperature=0, max_tokens=1)
    return lambda ids: llm.generate(
        [{"prompt_token_ids": row} for row in ids], params, use_tqdm=False
    )


def genai(options: argparse.Namespace) -> Read:
    """OpenVINO GenAI's continuous batching."""
    import numpy as np
    import openvino as ov
    import openvino_genai as library

    scheduler = library.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 2, 16, 512
    pipe = library.ContinuousBatchingPipeline(
        str(options.models / f"ov_{options.target}"),
        scheduler_config=scheduler,
        device="CPU",
        properties={"INFERENCE_PRECISION_HINT": "bf16"},
    )
    config = library.GenerationConfig()
    config.max_new_tokens, config.do_sample = 1, False

    def read(ids: list[list[int]]) -> object:
        tensors = [ov.Tensor(np.array([row], dtype=np.int64)) for row in ids]
        return pipe.generate(tensors, [config] * len(ids))

    return read


ENGINES: dict[str, Callable[[argparse.Namespace], Read]] = {
    "exact": lambda options: ours(options, "exact"),
    "fast": lambda options: ours(options, "fast"),
    "openvino": lambda options: ours(options, "fast", "openvino"),
    "openvino-exact": lambda options: ours(options, "exact", "openvino"),
    "transformers": transformers,
    "vllm": vllm,
    "genai": genai,
}


if __name__ == "__main__":
    main()
