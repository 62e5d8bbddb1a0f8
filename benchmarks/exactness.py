#!/usr/bin/env python3
"""Exact match against transformers' own `generate` at batch 1, in both numerics tiers.

    python benchmarks/exactness.py MODELS [--target grown4 --draft smollm2] [--cost] [--output F]

MODELS holds the folders of the target and the draft. Speculative batches of every size and K are
compared with three references, ids and logits bit for bit:

    generate  transformers' loop and its DynamicCache, one prompt at a time: with this package's
              attention and linears for the exact tier, as it is in stock for the fast one
    plain     this package's own decoding without drafts, one prompt at a time, in the same tier

`--cost` also times exact against fast, in turn, in one process. Every cell is one JSON line of
`--output`, and is skipped when it is already there; a Markdown table is printed and written
beside it. Prompts: every 20th question of Spec-Bench from the 8th on, first turn, no chat template.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

import draftproof
from draftproof.bench.journal import Journal, environment
from draftproof.errors import NumericsError
from draftproof.hf import default_eos, load_model, load_tokenizer, same_numerics
from draftproof.testing import scored_run

QUESTIONS = Path(__file__).parents[2] / "shared" / "data" / "spec_bench" / "question.jsonl"
FIRST, EVERY, LONGEST = 7, 20, 256  # questions taken, and their longest prompt in tokens
NGRAM = "ngram"

Row = dict[str, Any]  # ids of one prompt's new tokens, and a digest of the logits of each


def main() -> None:
    """Fill the cells that are missing, then print the table of all of them."""
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        journal = Journal(arguments.output or Path(scratch) / "exactness.jsonl")
        Bench(arguments, journal).run()
        text = report(journal.records())
    print(text)
    if arguments.output:
        arguments.output.with_suffix(".md").write_text(text + "\n", encoding="utf-8")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("models", type=Path)
    add("--target", default="grown4")
    add("--draft", default="smollm2", help="a folder of MODELS, or ngram")
    add("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    add("--device", default="cpu")
    add("--input", type=Path, default=QUESTIONS, help="Spec-Bench's question.jsonl")
    add("--prompts", type=int, default=24)
    add("--max-new-tokens", type=int, default=64)
    add("--batch-sizes", type=numbers, default=[1, 4, 8, 24])
    add("--num-speculative-tokens", type=numbers, default=[3, 4, 5])
    add("--numerics", default="exact,fast", help="exact, fast, or both")
    add("--cost", action="store_true", help="also time exact against fast")
    add("--cost-batch-sizes", type=numbers, default=[1, 4, 8])
    add("--cost-prompts", type=int, default=8)
    add("--cost-repeats", type=int, default=3)
    add("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count()))
    add("--output", type=Path, help="JSON lines; the table goes to the same name with .md")
    return parser.parse_args(words)


def digest(logits: Tensor) -> str:
    """Short name of the bits of [V] logits; `generate` gives 16-bit ones back in float32."""
    data = logits.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Bench:
    """The models, the prompts and the cells of one command line."""

    def __init__(self, arguments: argparse.Namespace, journal: Journal) -> None:
        self.given, self.journal = arguments, journal
        self.done = {record["key"]: record for record in journal.records()}
        folder = arguments.models / arguments.target
        self.prompts = self._prompts(load_tokenizer(str(folder)))
        # a file with other prompts must not go on with these ones' cells
        self.fingerprint = hashlib.blake2b(repr(self.prompts).encode(), digest_size=4).hexdigest()
        options = {"dtype": arguments.dtype, "device": arguments.device, "model_kwargs": {}}
        self.target = load_model(str(folder), **options)
        self.draft: Any = NGRAM
        if arguments.draft != NGRAM:
            self.draft = load_model(str(arguments.models / arguments.draft), **options)
        self.eos = default_eos(self.target)
        self._pairs: dict[str, draftproof.Pair] = {}

    def _prompts(self, tokenizer: Any) -> list[list[int]]:
        lines = self.given.input.read_text(encoding="utf-8").splitlines()
        turns = [json.loads(line)["turns"][0] for line in lines[FIRST::EVERY]]
        if len(turns) < self.given.prompts:
            raise SystemExit(f"{self.given.prompts} prompts wanted, {len(turns)} there")
        return [tokenizer(text)["input_ids"][:LONGEST] for text in turns[: self.given.prompts]]

    def run(self) -> None:
        """Every cell that is not done."""
        for tier in self.given.numerics.split(","):
            self._unless_refused(tier, lambda tier=tier: self._tier(tier))
        if self.given.cost:
            self._unless_refused("both", self._costs)

    def _unless_refused(self, tier: str, run: Callable[[], None]) -> None:
        try:
            run()
        except NumericsError as error:
            words = str(error)
            self._record(tier, "refused", 0, 0, lambda: {"refused": words})

    def _costs(self) -> None:
        for batch in self.given.cost_batch_sizes:
            for k in self.given.num_speculative_tokens:
                make = functools.partial(self._cost, batch, k)
                self._record("both", "cost", batch, k, lambda make=make: {"cost": make()})

    def _tier(self, tier: str) -> None:
        references = {
            "generate": self._record(tier, "generate", 1, 0, lambda: self._generated(tier)),
            "plain": self._record(tier, "plain", 1, 0, lambda: self._decoded(tier, 1, 0)),
        }
        for batch in self.given.batch_sizes:
            for drafted in self.given.num_speculative_tokens:
                self._record(
                    tier,
                    "speculative",
                    batch,
                    drafted,
                    lambda b=batch, k=drafted: self._compared(tier, b, k, references),
                )

    def _record(
        self, tier: str, mode: str, batch: int, drafted: int, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The record of a cell, from the file or made now."""
        given = self.given
        cell = {
            "target": given.target,
            "draft": given.draft,
            "dtype": given.dtype,
            "device": given.device,
            "threads": given.threads,
            "prompts": given.prompts,
            "prompt_ids": self.fingerprint,
            "max_new_tokens": given.max_new_tokens,
            "numerics": tier,
            "mode": mode,
            "batch_size": batch,
            "num_speculative_tokens": drafted,
        }
        key = " ".join(map(str, cell.values()))
        if key not in self.done:
            start = time.perf_counter()
            made = make()
            seconds = round(time.perf_counter() - start, 2)
            about = environment(torch.device(given.device))
            record = {"key": key, **cell, "seconds": seconds, **made, "environment": about}
            self.done[key] = record
            self.journal.append(record)
            shown = {k: v for k, v in made.items() if k != "rows"}
            print(json.dumps(cell | {"seconds": seconds} | shown), flush=True)
        return self.done[key]

    def _pair(self, tier: str) -> draftproof.Pair:
        if tier not in self._pairs:
            self._pairs[tier] = draftproof.Pair(self.target, self.draft, numerics=tier)
        return self._pairs[tier]

    # -- references and runs ----------------------------------------------------------------------

    def _generated(self, tier: str) -> dict[str, Any]:
        """transformers' own loop; `_target` and `_shapes`: what the tier runs with."""
        pair = self._pair(tier)
        rows = []
        for prompt in self.prompts:
            if tier == "exact":
                with same_numerics(pair._target, pair._shapes):
                    rows.append(self._generate(prompt, pair._target._cache_name))
            else:
                rows.append(self._generate(prompt, pair._target._cache_name))
        return {"rows": rows}

    @torch.no_grad()
    def _generate(self, prompt: list[int], cache: str) -> Row:
        ids = torch.tensor([prompt], device=self.given.device)
        output = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{cache: DynamicCache()},
            max_new_tokens=self.given.max_new_tokens,
            do_sample=False,
            eos_token_id=self.eos,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = output.sequences[0, len(prompt) :].tolist()
        return {"ids": new, "logits": [digest(step[0]) for step in output.logits]}

    def _decoded(self, tier: str, batch: int, drafted: int) -> dict[str, Any]:
        """This package's engine; a token's logits are those of the last time it was scored."""
        job = self._pair(tier).prepare(
            self.prompts,
            max_new_tokens=self.given.max_new_tokens,
            max_num_seqs=batch,
            num_speculative_tokens=drafted,
            eos_token_id=self.eos,
        )
        for request in job.requests:
            job.engine.add(request)
        found = scored_run(job.engine, digest).values()
        return {
            "rows": [{"ids": row.emitted, "logits": logits} for row, logits in found],
            "acceptance": _acceptance([row for row, _ in found]),
        }

    def _compared(
        self, tier: str, batch: int, drafted: int, references: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        made = self._decoded(tier, batch, drafted)
        matches = {
            name: {
                what: sum(a[what] == b[what] for a, b in zip(made["rows"], other, strict=True))
                for what in ("ids", "logits")
            }
            for name, other in ((name, record["rows"]) for name, record in references.items())
        }
        return {"matches": matches, **made}

    # -- cost -------------------------------------------------------------------------------------

    def _cost(self, batch: int, drafted: int) -> dict[str, Any]:
        """Wall time of both tiers on the same prompts, taken in turn, prefill included."""
        prompts = self.prompts[: max(batch, self.given.cost_prompts)]
        times: dict[str, list[float]] = {"fast": [], "exact": []}
        for repeat in range(self.given.cost_repeats + 1):
            order = sorted(times, reverse=bool(repeat % 2))  # neither always runs first
            for tier in order:
                warm = repeat == 0
                start = time.perf_counter()
                self._pair(tier).generate(
                    prompts[: batch if warm else None],
                    max_new_tokens=4 if warm else self.given.max_new_tokens,
                    max_num_seqs=batch,
                    num_speculative_tokens=drafted,
                    eos_token_id=self.eos,
                )
                if not warm:
                    times[tier].append(time.perf_counter() - start)
        ratios = [exact / fast for fast, exact in zip(*times.values(), strict=True)]
        return {
            "prompts": len(prompts),
            "seconds": {tier: [round(t, 3) for t in taken] for tier, taken in times.items()},
            "percent": round(100 * (statistics.median(ratios) - 1), 2),
        }


def _acceptance(rows: Sequence[Any]) -> float | None:
    drafted = sum(row.stats.num_draft_tokens for row in rows)
    accepted = sum(row.stats.num_accepted_draft_tokens for row in rows)
    return round(accepted / drafted, 4) if drafted else None


# -- report ---------------------------------------------------------------------------------------


def report(records: Sequence[dict[str, Any]]) -> str:
    """Markdown: exact match by tier, reference, K and batch size, and the cost."""
    lines = []
    for settings in dict.fromkeys(map(_settings, records)):
        mine = [record for record in records if _settings(record) == settings]
        lines += ["", settings, "", *_matches(mine), *_costs(mine)]
    return "\n".join(lines[1:])


def _settings(record: dict[str, Any]) -> str:
    about = record["environment"]
    return (
        f"{record['target']} + {record['draft']}, {record['dtype']}, {record['prompts']} prompts x "
        f"{record['max_new_tokens']} tokens; {about['machine']}, {about['capability']}, "
        f"{record['threads']} threads, torch {about['torch']}, transformers "
        f"{about['transformers']}, draftproof {about['draftproof']}"
    )


def _matches(records: Sequence[dict[str, Any]]) -> list[str]:
    cells = [record for record in records if record["mode"] == "speculative"]
    sizes = sorted({record["batch_size"] for record in cells})
    lines = [record["refused"] for record in records if record["mode"] == "refused"]
    table: dict[tuple[str, str, int], dict[int, str]] = {}
    for record in cells:
        for name, match in record["matches"].items():
            row = table.setdefault((record["numerics"], name, record["num_speculative_tokens"]), {})
            bits = f"{match['ids']} of {record['prompts']}, logits {match['logits']}"
            row[record["batch_size"]] = bits
    if not table:
        return lines
    head = ["numerics", "reference", "K", *(f"B = {size}" for size in sizes)]
    rows = [
        [*map(str, key), *(row.get(size, "-") for size in sizes)]
        for key, row in sorted(table.items())
    ]
    return [*lines, *_markdown(head, rows), ""]


def _costs(records: Sequence[dict[str, Any]]) -> list[str]:
    cells = [record for record in records if record["mode"] == "cost"]
    sizes = sorted({record["batch_size"] for record in cells})
    table: dict[int, dict[int, str]] = {}
    for record in cells:
        row = table.setdefault(record["num_speculative_tokens"], {})
        row[record["batch_size"]] = f"{record['cost']['percent']:+.1f} %"
    if not table:
        return []
    head = ["exact against fast, wall: K", *(f"B = {size}" for size in sizes)]
    rows = [[str(k), *(row.get(size, "-") for size in sizes)] for k, row in sorted(table.items())]
    return _markdown(head, rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
