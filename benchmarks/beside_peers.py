#!/usr/bin/env python3
"""draftproof beside the other libraries: the same prompts, models and K, in one run.

    python benchmarks/beside_peers.py HOME --peers ../shared/peers [--economize PYTHON] [--output F]

HOME holds the folders `grown4` (target) and `smollm2` (draft) that `make_models.py` of the peers
makes. Every configuration is one process's work, one after the other, and ends in one JSON line:
wall tokens/s with prefill, by token ids. economize needs an environment of its own, whose Python
is named. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run ours and the peers, print the lines and a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--peers", type=Path, default=Path("../shared/peers"))
    parser.add_argument("--economize", help="Python of an environment that has economize")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--batch-sizes", default="1,4,8")
    parser.add_argument("--numerics", default="fast,exact")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=("ours", "peers"))
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    if arguments.only != "peers":
        lines += ours(arguments)
    if arguments.only != "ours":
        lines += peers(arguments)
    if arguments.output:
        arguments.output.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(table(lines))


def ours(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Plain and speculative decoding at every batch size, fast and exact interleaved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import draftproof

    torch.set_num_threads(arguments.threads)
    sys.path.insert(0, str(arguments.peers))
    from common import EOS, prompts

    ids = prompts(AutoTokenizer.from_pretrained(arguments.home / "smollm2"))
    models = [
        AutoModelForCausalLM.from_pretrained(arguments.home / name, dtype=torch.bfloat16).eval()
        for name in ("grown4", "smollm2")
    ]
    names = arguments.numerics.split(",")
    pairs = {name: draftproof.Pair(*models, numerics=name) for name in names}
    lines, reference = [], None
    for batch in map(int, arguments.batch_sizes.split(",")):
        for drafted in (0, arguments.num_speculative_tokens):
            for numerics, pair in pairs.items():
                warm = {"max_new_tokens": 4, "max_num_seqs": batch, "eos_token_id": EOS}
                pair.generate(ids[:batch], num_speculative_tokens=drafted, **warm)
                line, outputs = measured(pair, ids, batch, drafted, arguments.max_new_tokens, EOS)
                reference = reference or outputs
                same = sum(a == b for a, b in zip(outputs, reference, strict=True))
                line |= {"numerics": numerics, "exact_match": f"{same}/{len(ids)}"}
                print(json.dumps(line), flush=True)
                lines.append(line)
    return lines


def measured(
    pair: Any, ids: list[list[int]], batch: int, drafted: int, new: int, eos: int
) -> tuple[dict[str, Any], list[list[int]]]:
    """One run under clocks around the two models' forwards."""
    from draftproof.bench.clocks import REST, Stopwatch, put_clocks_around

    start = time.perf_counter()
    job = pair.prepare(
        ids,
        max_new_tokens=new,
        eos_token_id=eos,
        max_num_seqs=batch,
        num_speculative_tokens=drafted,
    )
    watch, results = Stopwatch(), {}
    put_clocks_around(job.engine, watch, proposing=REST)  # DRAFT and VERIFY: forwards alone
    for request in job.requests:
        job.engine.add(request)
    accepted = proposed = 0
    rounds = job.engine.run()
    while True:
        with watch.span(REST):
            commits = next(rounds, None)
        if commits is None:
            break
        for commit in commits:
            if commit.row.finish_reason is not None:
                results[commit.row.request.index] = commit.row.emitted
                accepted += commit.row.stats.num_accepted_draft_tokens
                proposed += commit.row.stats.num_draft_tokens
    wall = time.perf_counter() - start
    outputs = [results[index] for index in range(len(ids))]
    tokens = sum(map(len, outputs))
    total = sum(watch.seconds.values())
    line = {
        "peer": "draftproof",
        "mode": "draft_model" if drafted else "plain",
        "batch": batch,
        "k": drafted,
        "tokens": tokens,
        "wall_s": round(wall, 2),
        "tok_per_s": round(tokens / wall, 1),
        "acceptance": round(accepted / max(1, proposed), 3),
        "share": {name: round(value / total, 4) for name, value in watch.seconds.items()},
    }
    return line, outputs


def peers(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The peers' own scripts, in processes of their own."""
    runs = [(sys.executable, "run_transformers.py")]
    if arguments.economize:
        runs.append((arguments.economize, "run_economize.py"))
    lines = []
    for python, script in runs:
        command = [python, str(arguments.peers / script), str(arguments.home)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        process = subprocess.Popen(
            [*command, str(arguments.max_new_tokens)],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            if text.startswith("{"):
                lines.append(json.loads(text))
        if process.wait() != 0:
            raise SystemExit(f"{script} failed with exit code {process.returncode}")
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: wall tokens/s by batch size."""
    sizes = sorted({line["batch"] for line in lines})
    cells: dict[str, dict[int, str]] = {}
    for line in lines:
        name = " ".join(filter(None, (line["peer"], line["mode"], line.get("numerics"))))
        match = line.get("exact_match", "")
        cells.setdefault(name, {})[line["batch"]] = f"{line['tok_per_s']} ({match})"
    head = "| tokens/s (exact match) | " + " | ".join(f"B = {size}" for size in sizes) + " |"
    rows = [
        f"| {name} | " + " | ".join(row.get(size, "-") for size in sizes) + " |"
        for name, row in cells.items()
    ]
    return "\n".join([head, "| --- |" + " --- |" * len(sizes), *rows])


if __name__ == "__main__":
    main()
