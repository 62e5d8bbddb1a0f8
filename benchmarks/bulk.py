#!/usr/bin/env python3
"""A bulk run of many requests of mixed lengths: ours beside the other libraries, time and memory.

    python benchmarks/bulk.py MODELS --input question.jsonl [--requests 1000] [--output F.jsonl]
        [--engines ours,ours-plain,transformers,economize,vllm] [--python vllm=PATH ...]

Prompts are pieces of Spec-Bench questions, 10 to 1,000 tokens long, no two with the same
beginning, so that no engine gains by having read one before. Every engine decodes the same token
ids greedily in a process of its own, one after the other, and ends in one JSON line: generated
tokens by id, wall seconds with prefill but without loading, and the peak resident memory of its
processes. transformers and economize take the requests in batches, in the order given or
(`-sorted`) shortest first; ours and vLLM admit a request whenever a row is free. Nothing else
should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

EOS = 2  # <|im_end|> of SmolLM2
SHORTEST, LONGEST = 10, 1000  # prompt tokens
MIB = 2**20

Decode = Callable[[list[list[int]]], list[list[int]]]


def main() -> None:
    """All engines, each in its own process; or one of them, in this process."""
    options = parse()
    if options.engine:
        print(json.dumps(measured(options)), flush=True)
        return
    pythons = dict(item.split("=", 1) for item in options.python)
    lines = earlier(options.output)
    for name in options.engines.split(","):
        if any(line["engine"] == name for line in lines):
            continue
        python = pythons.get(name.split("-")[0], sys.executable)
        lines.append(run_apart(python, name))
        print(json.dumps({k: v for k, v in lines[-1].items() if k != "outputs"}), flush=True)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            options.output.write_text(text, encoding="utf-8")
    print(table(lines))


def earlier(output: Path | None) -> list[dict[str, Any]]:
    """Engines that an earlier call of the same command has measured already."""
    if output is None or not output.exists():
        return []
    lines = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "error" not in line]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("models", type=Path)
    add("--input", type=Path, required=True, help="Spec-Bench's question.jsonl")
    add("--target", default="grown4")
    add("--draft", default="smollm2", help="a folder of MODELS, or ngram")
    add("--requests", type=int, default=1000)
    add("--max-new-tokens", type=int, default=32)
    add("--batch-size", type=int, default=8)
    add("--num-speculative-tokens", default="4", help="K, or auto for ours (4 for the others)")
    add("--numerics", default="exact", help="of ours")
    add("--threads", type=int, default=os.cpu_count())
    add("--engines", default="ours,ours-plain,transformers,transformers-sorted")
    add("--python", action="append", default=[], help="NAME=PYTHON of an engine's environment")
    add("--output", type=Path)
    add("--engine", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_apart(python: str, name: str) -> dict[str, Any]:
    """The line of one engine; what went wrong is a line too."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    command = [python, *sys.argv, "--engine", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith('{"engine"')]
    if not found:
        return {"engine": name, "error": done.stderr.strip().splitlines()[-1:]}
    return dict(json.loads(found[-1]))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Load, warm up, decode under a watch."""
    ids = prompts(options)
    decode = ENGINES[options.engine](options)
    decode(ids[: options.batch_size])
    watch = Memory()
    start = time.perf_counter()
    outputs = decode(ids)
    wall = time.perf_counter() - start
    tokens = sum(map(len, outputs))
    return {
        "engine": options.engine,
        "target": options.target,
        "draft": options.draft,
        "requests": len(ids),
        "prompt_tokens": sum(map(len, ids)),
        "batch_size": options.batch_size,
        "k": options.num_speculative_tokens,
        "threads": options.threads,
        "tokens": tokens,
        "wall_s": round(wall, 1),
        "tok_per_s": round(tokens / wall, 1),
        "peak_mib": watch.stop(),
        "outputs": outputs,
    }


def prompts(options: argparse.Namespace) -> list[list[int]]:
    """Pieces of questions. Lengths are drawn evenly on a logarithmic scale."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.models / options.target)
    lines = options.input.read_text(encoding="utf-8").splitlines()
    texts = [tokenizer("\n".join(json.loads(line)["turns"]))["input_ids"] for line in lines]
    draw = random.Random(0)
    found: dict[tuple[int, ...], list[int]] = {}
    while len(found) < options.requests:
        length = round(SHORTEST * (LONGEST / SHORTEST) ** draw.random())
        ids = draw.choice([text for text in texts if len(text) >= length])
        start = draw.randrange(len(ids) - length + 1)
        piece = ids[start : start + length]
        found.setdefault(tuple(piece[:SHORTEST]), piece)
    return list(found.values())


class Memory:
    """Peak resident memory of this process and its children, sampled in a thread."""

    def __init__(self) -> None:
        self._peak, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            self._peak = max(self._peak, sum(map(resident, [os.getpid(), *children(os.getpid())])))

    def stop(self) -> int:
        """MiB."""
        self._stop.set()
        self._thread.join()
        return round(self._peak / MIB)


def resident(pid: int) -> int:
    """Bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except OSError:  # it has ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """Direct ones and theirs."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        words = [(task / "children").read_text(encoding="utf-8").split() for task in tasks]
    except OSError:
        return []
    direct = [int(word) for line in words for word in line]
    return [*direct, *(found for child in direct for found in children(child))]


# -- engines --------------------------------------------------------------------------------------


def _model(options: argparse.Namespace, name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    folder = options.models / name
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def ours(options: argparse.Namespace, plain: bool = False) -> Decode:
    """draftproof."""
    import torch

    import draftproof

    torch.set_num_threads(options.threads)
    draft = options.draft
    if draft != "ngram":
        draft = str(options.models / draft)
    pair = draftproof.load(
        str(options.models / options.target),
        draft,
        dtype="bfloat16",
        numerics=options.numerics,
    )
    k: Any = options.num_speculative_tokens
    k = 0 if plain else k if k == "auto" else int(k)

    def decode(ids: list[list[int]]) -> list[list[int]]:
        results = pair.generate(
            ids,
            max_new_tokens=options.max_new_tokens,
            max_num_seqs=options.batch_size,
            num_speculative_tokens=k,
            eos_token_id=EOS,
        )
        return [list(result.token_ids) for result in results]

    return decode


def transformers(options: argparse.Namespace, ordered: bool = False) -> Decode:
    """Plain `generate` on left-padded batches."""
    import torch

    target = _model(options, options.target)

    @torch.inference_mode()
    def run(group: list[list[int]]) -> list[list[int]]:
        width = max(map(len, group))
        tokens = torch.tensor([[0] * (width - len(x)) + x for x in group])
        mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in group])
        out = target.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=options.max_new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return [cut(row) for row in out[:, width:].tolist()]

    return lambda ids: in_batches(ids, options.batch_size, run, ordered)


def economize(options: argparse.Namespace, plain: bool = False, ordered: bool = False) -> Decode:
    """Its draft model or n-gram lookup; plain is a cycle of one token."""
    import economize as library
    import torch
    from economize.techniques.draft_model import DraftModelConfig
    from economize.techniques.lookup import LookupConfig

    target = _model(options, options.target)
    config: Any = LookupConfig()
    if options.draft != "ngram":
        config = DraftModelConfig(model=str(options.models / options.draft))
    model = library.apply(target, config)
    cycle = 1 if plain else 5

    def run(group: list[list[int]]) -> list[list[int]]:
        results = model.decode_batch(
            [torch.tensor(x) for x in group],
            options.max_new_tokens,
            decoding=library.DecodeConfig(cycle_length=cycle),
            stop=EOS,
        )
        return [cut(list(map(int, r.tokens))[: options.max_new_tokens]) for r in results]

    return lambda ids: in_batches(ids, options.batch_size, run, ordered)


def vllm(options: argparse.Namespace, plain: bool = False) -> Decode:
    """vLLM's CPU build; its own scheduler admits the requests."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")
    from vllm import LLM, SamplingParams

    drafting: dict[str, Any] = {"num_speculative_tokens": 4}
    if options.draft == "ngram":
        drafting |= {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    else:
        drafting |= {"method": "draft_model", "model": str(options.models / options.draft)}
    llm = LLM(
        str(options.models / options.target),
        dtype="bfloat16",
        max_model_len=LONGEST + options.max_new_tokens + 8,
        max_num_seqs=options.batch_size,
        enforce_eager=True,
        enable_prefix_caching=False,
        **({} if plain else {"speculative_config": drafting}),
    )
    params = SamplingParams(temperature=0, max_tokens=options.max_new_tokens, stop_token_ids=[EOS])

    def decode(ids: list[list[int]]) -> list[list[int]]:
        wanted = [{"prompt_token_ids": x} for x in ids]
        results = llm.generate(wanted, params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return decode


ENGINES: dict[str, Callable[[argparse.Namespace], Decode]] = {
    "ours": ours,
    "ours-plain": lambda o: ours(o, plain=True),
    "transformers": transformers,
    "transformers-sorted": lambda o: transformers(o, ordered=True),
    "economize": economize,
    "economize-sorted": lambda o: economize(o, ordered=True),
    "economize-plain": lambda o: economize(o, plain=True),
    "economize-plain-sorted": lambda o: economize(o, plain=True, ordered=True),
    "vllm": vllm,
    "vllm-plain": lambda o: vllm(o, plain=True),
}


def in_batches(ids: list[list[int]], size: int, run: Decode, ordered: bool) -> list[list[int]]:
    """Outputs in the order of `ids`."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i])) if ordered else range(len(ids))
    outputs: dict[int, list[int]] = {}
    for start in range(0, len(ids), size):
        chosen = list(order)[start : start + size]
        outputs.update(zip(chosen, run([ids[i] for i in chosen]), strict=True))
    return [outputs[i] for i in range(len(ids))]


def cut(ids: list[int]) -> list[int]:
    """Up to and with the first end of text."""
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


# -- report ---------------------------------------------------------------------------------------


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: every engine against the first."""
    rows = ["| engine | tokens | wall s | tokens/s | times the first | peak MiB | outputs equal |"]
    rows.append("| --- " * 7 + "|")
    first = next((line for line in lines if "error" not in line), None)
    for line in lines:
        if first is None or "error" in line:
            rows.append(f"| {line['engine']} | {line.get('error')} |" + " - |" * 5)
            continue
        pairs = zip(line["outputs"], first["outputs"], strict=True)
        same = sum(mine == other for mine, other in pairs)
        rows.append(
            f"| {line['engine']} | {line['tokens']} | {line['wall_s']} | {line['tok_per_s']} "
            f"| {line['tok_per_s'] / first['tok_per_s']:.2f} | {line['peak_mib']} "
            f"| {same}/{len(line['outputs'])} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
