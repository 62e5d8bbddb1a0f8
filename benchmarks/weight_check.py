"""What it costs to look for changed weights before a run.

    python benchmarks/weight_check.py [--tensors 300]

Ends in one JSON line: median milliseconds, and tensors and modules looked at.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn

from draftproof.hf import Watch


def main() -> None:
    """Build a stack of linears and time the check of an unchanged model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    blocks = (nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5))) for _ in range(60))
    layers = [layer for block in blocks for layer in block][: options.tensors]
    model = nn.ModuleList(layers)
    watch, seconds = Watch(model), []
    for _ in range(options.repeats):
        begin = time.perf_counter()
        changed = watch.restructured or watch.rewritten
        seconds.append(time.perf_counter() - begin)
        assert not changed
    median = round(1e3 * statistics.median(seconds), 3)
    modules = len(list(model.modules()))
    print(json.dumps({"milliseconds": median, "tensors": len(layers), "modules": modules}))


if __name__ == "__main__":
    main()
