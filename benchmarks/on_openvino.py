#!/usr/bin/env python3
"""Target and draft on OpenVINO under this package's loop, on the prompts of the peers' scripts.

    python benchmarks/on_openvino.py HOME --peers ../shared/peers [--output F]

HOME holds the folders `grown4` (target) and `smollm2` (draft) that `make_models.py` of the peers
makes; `--target` and `--draft` name others. Needs `draftproof[openvino]`. One JSON line per batch
size and K: wall tokens/s with prefill, by token ids, as the peers measure it, and beside it what
the forwards alone took. `run_openvino.py` of the peers measures OpenVINO GenAI on the same prompts.

A second model, with a sliding window, on longer prompts (`make_gemma3.py` makes its folder):

    python benchmarks/on_openvino.py HOME --target gemma3-270m --draft ngram --dtype float32 \
        --categories summarization,rag --limit 900 --prompts 4 --oracle

efficiency   share of the wall time that was spent inside the forwards of target and draft
peak_mib     largest resident memory of the process so far, conversion excluded when it was cached
exact_match  outputs equal to the first configuration's; equal_logits likewise, bit by bit
oracle       outputs equal to the slow reference's (`draftproof.reference`: PyTorch, float32)
stock        outputs equal to those of transformers' own `generate`, one at a time in float32
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Watch:
    """Seconds inside the forwards of an executor, and how many there were."""

    executor: Any
    seconds: float = 0.0
    forwards: int = 0

    def __post_init__(self) -> None:
        self._forward = self.executor.forward
        self.executor.forward = self.forward

    def forward(self, tokens: Any) -> Any:
        """As the executor's, timed."""
        start = time.perf_counter()
        try:
            return self._forward(tokens)
        finally:
            self.seconds += time.perf_counter() - start
            self.forwards += 1


def main() -> None:
    """Measure every configuration and print its line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--peers", type=Path, default=Path("../shared/peers"))
    parser.add_argument("--target", default="grown4")
    parser.add_argument("--draft", default="smollm2", help="a folder in HOME, or ngram")
    parser.add_argument("--executors", default="openvino,openvino", help="of target and draft")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--draft-weights", default="auto", help="int8: rounded")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--categories", help="of Spec-Bench, instead of every 20th question")
    parser.add_argument("--limit", type=int, default=256, help="tokens of a prompt at most")
    parser.add_argument("--oracle", action="store_true", help="compare with the slow reference")
    parser.add_argument("--stock", action="store_true", help="and with transformers' generate")
    parser.add_argument("--batch-sizes", default="1,4,8")
    parser.add_argument("--num-speculative-tokens", default="0,auto", help="K, or auto")
    parser.add_argument("--numerics", default="fast", help="fast, exact or auto")
    parser.add_argument("--logits", action="store_true", help="compare logits too, bit by bit")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    lines = []
    for line in measured(arguments):
        print(json.dumps(line), flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line per batch size and K; all are compared to the first one's outputs."""
    import torch
    from transformers import AutoTokenizer

    import draftproof

    torch.set_num_threads(arguments.threads)
    sys.path.insert(0, str(arguments.peers))
    from common import EOS

    target, draft = arguments.home / arguments.target, arguments.draft
    executors = arguments.executors.split(",")
    mine = "openvino" in executors
    settings = {"kv_cache_dtype": arguments.kv_cache_dtype}
    if draft != "ngram" and executors[-1] == "openvino":
        settings["draft_weights"] = arguments.draft_weights
    pair = draftproof.load(
        target,
        draft if draft == "ngram" else arguments.home / draft,
        dtype=arguments.dtype,
        numerics=arguments.numerics,
        executor=executors[0],
        draft_executor=None if draft == "ngram" else executors[-1],
        executor_options=settings if mine else None,
    )
    ids = chosen(arguments, AutoTokenizer.from_pretrained(target))
    end = {"eos_token_id": EOS} if arguments.categories is None else {}  # or the model's own
    slow = {
        name: expected(target, ids, arguments.max_new_tokens, stock=name == "stock")
        for name in ("oracle", "stock")
        if getattr(arguments, name)
    }
    reference, logits = None, None
    for batch in map(int, arguments.batch_sizes.split(",")):
        for word in arguments.num_speculative_tokens.split(","):
            drafted = word if word == "auto" else int(word)
            options = {
                "max_num_seqs": batch,
                "num_speculative_tokens": drafted,
                **end,
            }
            run(pair, ids[:batch], max_new_tokens=4, **options)  # kernels are made at first use
            line, outputs = run(pair, ids, max_new_tokens=arguments.max_new_tokens, **options)
            reference = reference or outputs
            same = sum(a == b for a, b in zip(outputs, reference, strict=True))
            for name, rows in slow.items():
                equal = sum(a == b for a, b in zip(outputs, rows, strict=True))
                line[name] = f"{equal}/{len(ids)}"
            if arguments.logits:
                options |= {"max_new_tokens": arguments.max_new_tokens, "output_logits": True}
                found = [result.logits for result in pair.generate(ids, **options)]
                logits = logits or found
                equal = sum(map(torch.equal, found, logits))
                line["equal_logits"] = f"{equal}/{len(ids)}"
            yield {
                "peer": "draftproof",
                "mode": "+".join(executors),
                "batch": batch,
                "k": drafted,
                "numerics": pair.numerics,
                **line,
                "exact_match": f"{same}/{len(ids)}",
            }


def chosen(arguments: argparse.Namespace, tokenizer: Any) -> list[list[int]]:
    """Prompts: the peers', or the first ones of some categories, in turns."""
    from common import QUESTIONS, prompts

    if arguments.categories is None:
        return prompts(tokenizer, arguments.prompts, arguments.limit)
    rows = [json.loads(line) for line in QUESTIONS.open()]
    wanted = arguments.categories.split(",")
    columns = [[row["turns"][0] for row in rows if row["category"] == name] for name in wanted]
    texts = [text for group in zip(*columns, strict=False) for text in group]
    return [tokenizer(text)["input_ids"][: arguments.limit] for text in texts[: arguments.prompts]]


def expected(target: Path, ids: list[list[int]], new: int, *, stock: bool) -> list[list[int]]:
    """What the slow reference writes, or transformers' own `generate`."""
    import torch
    from transformers import AutoModelForCausalLM

    from draftproof.hf import default_eos
    from draftproof.reference import reference
    from draftproof.sampling import as_ids
    from draftproof.testing.oracle import stock_generate

    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    if stock:
        return [stock_generate(model.eval(), prompt, new) for prompt in ids]
    eos = as_ids(default_eos(model))
    return [reference(model, prompt, new, eos_token_id=eos) for prompt in ids]


def run(pair: Any, ids: list[list[int]], **options: Any) -> tuple[dict[str, Any], list[list[int]]]:
    """Decode the prompts once: figures and token ids."""
    start = time.perf_counter()
    job = pair.prepare(ids, **options)
    engine = job.engine
    memories = {"target": engine.target, "draft": getattr(engine.drafter, "executor", None)}
    watches = {name: Watch(part) for name, part in memories.items() if part is not None}
    for request in job.requests:
        engine.add(request)
    rows: dict[int, Any] = {}
    for commits in engine.run():
        rows |= {commit.row.request.index: commit.row for commit in commits}
    wall = time.perf_counter() - start
    outputs = [list(rows[index].emitted) for index in sorted(rows)]
    tokens = sum(map(len, outputs))
    accepted = sum(row.stats.num_accepted_draft_tokens for row in rows.values())
    inside = sum(watch.seconds for watch in watches.values())
    line = {
        "tokens": tokens,
        "wall_s": round(wall, 2),
        "tok_per_s": round(tokens / wall, 1),
        "efficiency": round(inside / wall, 3),
        "rounds": engine.rounds,
        "accepted": accepted,
        **{f"{name}_s": round(watch.seconds, 2) for name, watch in watches.items()},
        **{f"{name}_forwards": watch.forwards for name, watch in watches.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    return line, outputs


if __name__ == "__main__":
    main()
