#!/usr/bin/env python3
"""This package on OpenVINO beside OpenVINO GenAI, in turns in one process.

    python benchmarks/beside_genai.py HOME --peers ../shared/peers [--output F]

HOME holds `grown4` and `smollm2` (as for on_openvino.py) and `ov_grown4` and `ov_smollm2`, which
`optimum-cli export openvino` writes, see `run_openvino.py` of the peers. Needs openvino-genai
beside `draftproof[openvino]`.

The prompts are gone through in slices; every contender decodes a slice before anybody gets the
next one, so that a machine whose pace changes slows down all of them. GenAI is handed a batch at a
time, as in `run_openvino.py`, or a whole slice with `--continuous`; ours a whole slice. One JSON
line per batch size and contender: wall tokens/s with prefill, by token ids, and prompt tokens per
second up to the first tokens; ours also with the share of the wall time that the forwards took.

Contenders are genai:plain, genai:draft, and fast:K or exact:K, ours in one tier of numerics with a
number or auto as K; K@0.4 ends a row's drafting after a token less probable than that, and
fast+int8:K has a draft with weights of 8 bits. peak_mib is the process's: of a contender only where
it is the only one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Run = Callable[[list[list[int]], int], tuple[list[list[int]], dict[str, float]]]
DRAFTED = 4  # GenAI's, as in run_openvino.py


def main() -> None:
    """Measure every batch size and print its lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--peers", type=Path, default=Path("../shared/peers"))
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--slice", type=int, default=8)
    parser.add_argument("--batch-sizes", default="1,4,8")
    parser.add_argument(
        "--contenders", default="genai:plain,genai:draft,fast:0,fast:auto,exact:auto"
    )
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.peers))
    for batch in map(int, arguments.batch_sizes.split(",")):
        for line in measured(arguments, batch):
            print(json.dumps(line), flush=True)
            if arguments.output:
                with arguments.output.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def measured(arguments: argparse.Namespace, batch: int) -> list[dict[str, Any]]:
    """One line per contender."""
    import torch
    from common import prompts
    from transformers import AutoTokenizer

    torch.set_num_threads(arguments.threads)
    ids = prompts(AutoTokenizer.from_pretrained(arguments.home / "smollm2"))[: arguments.prompts]
    contenders = {name: made(arguments, batch, name) for name in arguments.contenders.split(",")}
    sums: dict[str, Any] = defaultdict(lambda: defaultdict(float))
    outputs: dict[str, list[list[int]]] = defaultdict(list)
    for run in contenders.values():  # kernels are made at first use
        for _ in range(2):
            run(ids[:batch], 12)
    for start in range(0, len(ids), arguments.slice):
        part = ids[start : start + arguments.slice]
        for name, run in contenders.items():
            begun = time.perf_counter()
            run(part, 1)
            sums[name]["reading_s"] += time.perf_counter() - begun
            begun = time.perf_counter()
            found, extra = run(part, arguments.max_new_tokens)
            sums[name]["wall_s"] += time.perf_counter() - begun
            outputs[name] += found
            for key, value in extra.items():
                sums[name][key] += value
    read = sum(map(len, ids))
    return [line(batch, name, sums[name], outputs, read) for name in contenders]


def line(
    batch: int, name: str, sums: dict[str, float], outputs: dict[str, list[list[int]]], read: int
) -> dict[str, Any]:
    """A contender's figures; its outputs are compared with the first plain one's of its kind."""
    kind = name.split(":")[0].split("+")[0]
    first = next(other for other in outputs if other.startswith(kind))
    tokens = sum(map(len, outputs[name]))
    same = sum(a == b for a, b in zip(outputs[name], outputs[first], strict=True))
    found = {
        "peer": "openvino-genai" if kind == "genai" else "draftproof",
        "mode": name,
        "batch": batch,
        "tokens": tokens,
        "wall_s": round(sums["wall_s"], 2),
        "tok_per_s": round(tokens / sums["wall_s"], 1),
        "prefill_tok_per_s": round(read / sums["reading_s"]),
        "same_as_first": f"{same}/{len(outputs[name])}",
    }
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if "inside_s" in sums:
        found["efficiency"] = round(sums["inside_s"] / sums["wall_s"], 3)
        found |= {key: int(sums[key]) for key in ("rounds", "accepted")}
    return found


def made(arguments: argparse.Namespace, batch: int, name: str) -> Run:
    """A contender: prompts and a number of new tokens to token ids and figures."""
    kind, mode = name.split(":")
    if kind == "genai":
        return genai(arguments.home, batch, mode == "draft", arguments.continuous)
    numerics, _, weights = kind.partition("+")
    return ours(arguments.home, batch, mode, numerics, weights or "auto")


def genai(home: Path, batch: int, draft: bool, continuous: bool) -> Run:
    """As in run_openvino.py of the peers."""
    import numpy as np
    import openvino as ov
    import openvino_genai as library
    from common import EOS, batches

    scheduler = library.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 2, batch, 512
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "bf16"}
    if draft:
        settings["draft_model"] = library.draft_model(
            str(home / "ov_smollm2"), "CPU", INFERENCE_PRECISION_HINT="bf16"
        )
    pipe = library.ContinuousBatchingPipeline(
        str(home / "ov_grown4"), scheduler_config=scheduler, device="CPU", properties=settings
    )

    def run(prompts: list[list[int]], new: int) -> tuple[list[list[int]], dict[str, float]]:
        config = library.GenerationConfig()
        config.max_new_tokens, config.do_sample = new, False
        config.set_eos_token_id(EOS)
        if draft:
            config.num_assistant_tokens = DRAFTED
        outputs = []
        for group in [prompts] if continuous else batches(prompts, batch):
            tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in group]
            done = pipe.generate(tensors, [config] * len(group))
            outputs += [list(result.m_generation_ids[0]) for result in done]
        return outputs, {}

    return run


PAIRS: dict[tuple[Path, str], Any] = {}  # models are opened once


def ours(home: Path, batch: int, mode: str, numerics: str, weights: str) -> Run:
    """Target and draft on OpenVINO under this package's loop."""
    import on_openvino
    from common import EOS

    import draftproof

    key = home, f"{numerics}, {weights}"
    if key not in PAIRS:
        options: dict[str, Any] = {"dtype": "bfloat16", "executor": "openvino"}
        options["executor_options"] = {"draft_weights": weights}
        PAIRS[key] = draftproof.load(
            home / "grown4", home / "smollm2", numerics=numerics, **options
        )
    pair = PAIRS[key]
    word, _, threshold = mode.partition("@")
    drafted: Any = word if word == "auto" else int(word)

    def run(prompts: list[list[int]], new: int) -> tuple[list[list[int]], dict[str, float]]:
        figures, outputs = on_openvino.run(
            pair,
            prompts,
            max_new_tokens=new,
            max_num_seqs=batch,
            num_speculative_tokens=drafted,
            assistant_confidence_threshold=float(threshold or 0),
            eos_token_id=EOS,
        )
        inside = figures["target_s"] + figures.get("draft_s", 0.0)
        sums: Sequence[tuple[str, float]] = [("inside_s", inside)]
        return outputs, dict(sums) | {key: figures[key] for key in ("rounds", "accepted")}

    return run


if __name__ == "__main__":
    main()
