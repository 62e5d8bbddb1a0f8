"""What audits cost: the same requests with and without, in turns, in one process.

    python benchmarks/audit_cost.py [--share 0.05] [--requests 200] [--target T --draft D]

Ends in one JSON line: seconds of both, their ratio, and the share of requests that was audited.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import draftproof
from draftproof.models import demo_paths
from draftproof.testing import random_prompts


def main() -> None:
    """Time `--repeats` pairs of runs after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(demo_paths()[0]))
    parser.add_argument("--draft", default=str(demo_paths()[1]))
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    pair = draftproof.load(given.target, given.draft)
    prompts = random_prompts([12 + i % 50 for i in range(given.requests)], seed=1)
    options: dict[str, Any] = {
        "max_new_tokens": given.max_new_tokens,
        "max_num_seqs": given.max_num_seqs,
    }
    pair.generate(prompts[:32], audit=1.0, **options)
    seconds, audited = {0.0: 0.0, given.share: 0.0}, 0
    for _ in range(given.repeats):
        for share in seconds:
            begin = time.perf_counter()
            results = pair.generate(prompts, audit=share, **options)
            seconds[share] += time.perf_counter() - begin
            audited = sum(result.audited is not None for result in results)
    without, with_audit = seconds.values()
    print(
        json.dumps(
            {
                "seconds": round(without, 2),
                "seconds_audited": round(with_audit, 2),
                "ratio": round(with_audit / without, 3),
                "share_audited": audited / len(prompts),
                "numerics": pair.numerics,
            }
        )
    )


if __name__ == "__main__":
    main()
