"""What sampling costs and how many drafts it accepts.

    python benchmarks/sampling.py acceptance     seeded coupling against rejection sampling
    python benchmarks/sampling.py rounds         time per round with processing on and off

Both use the embedded demo pair, or --target and --draft. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import draftproof
from draftproof.engine.events import RoundEvent
from draftproof.models import DEMO_PROMPTS, demo_paths

# name -> settings of `generate`
PROCESSING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "no_repeat_ngram_size": 4},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "everything": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "no_repeat_ngram_size": 4,
    },
}
ACCEPTANCE: dict[str, dict[str, Any]] = {
    "temperature 0.3": {"temperature": 0.3},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.0": {"temperature": 1.0},
    "temperature 1.0, top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "temperature 1.5": {"temperature": 1.5},
}


@dataclass
class Clock:
    """Times of the rounds in which all rows decode."""

    last: float | None = None
    rounds: list[float] = field(default_factory=list)

    def on_round(self, event: RoundEvent) -> None:
        now = time.perf_counter()
        if self.last is not None and all(row.drafts for row in event.rows):
            self.rounds.append(now - self.last)
        self.last = now


def prompts(count: int) -> list[str]:
    """Pieces of the demo prompts, all different."""
    words = " ".join(DEMO_PROMPTS).split()
    return [" ".join(words[2 * i : 2 * i + 6 + i % 19]) for i in range(count)]


def acceptance(pair: Any, options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name, settings in ACCEPTANCE.items():
        report[name] = {}
        for coupling in ("rejection", "seeded"):
            results = pair.generate(
                prompts(options.prompts),
                max_new_tokens=options.new_tokens,
                num_speculative_tokens=options.k,
                max_num_seqs=8,
                seed=1,
                coupling=coupling,
                eos_token_id=None,
                **settings,
            )
            drafted = sum(result.stats.num_draft_tokens for result in results)
            accepted = sum(result.stats.num_accepted_draft_tokens for result in results)
            steps = sum(result.stats.num_spec_steps for result in results)
            report[name][coupling] = {
                "draft_acceptance_rate": round(accepted / drafted, 4),
                "mean_acceptance_length": round(1 + accepted / steps, 3),
                "num_draft_tokens": drafted,
            }
            print(f"{name:28} {coupling:10} {report[name][coupling]}", flush=True)
    return report


def rounds(pair: Any, options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for rows in (8, 32):
        for name, settings in PROCESSING.items():
            times: list[float] = []
            for repeat in range(options.repeats + 1):
                clock = Clock()
                pair.generate(
                    prompts(rows),
                    max_new_tokens=options.new_tokens,
                    num_speculative_tokens=options.k,
                    max_num_seqs=rows,
                    max_num_batched_tokens=4096,
                    seed=1,
                    eos_token_id=None,
                    observers=[clock],
                    **settings,
                )
                times += clock.rounds if repeat else []  # the first one warms up
            milliseconds = 1e3 * median(times)
            report[f"B {rows}, {name}"] = round(milliseconds, 3)
            print(f"B {rows:2}  {name:12} {milliseconds:8.2f} ms per round", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["acceptance", "rounds"])
    target, draft = demo_paths()
    parser.add_argument("--target", default=str(target))
    parser.add_argument("--draft", default=str(draft))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    pair = draftproof.load(options.target, options.draft, dtype=options.dtype)
    report = {"acceptance": acceptance, "rounds": rounds}[options.what](pair, options)
    print(
        json.dumps(
            {"benchmark": options.what, **vars(options), "pair": pair.describe(), "report": report}
        )
    )


if __name__ == "__main__":
    main()
