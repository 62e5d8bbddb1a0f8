#!/usr/bin/env python3
"""Under which shapes OpenVINO gives a row the same bits whatever is beside it: the measurements
behind docs/openvino.md.

    python benchmarks/openvino_rows.py MODEL [--dtypes float32,bfloat16] [--threads 1,2]

One row of 48 tokens is fed whole, in pieces, token by token, and beside other rows; the logits of
all its positions are compared bit by bit with those of the whole. Two rules are tried on top:
rounding the number of tokens of a forward up with a filler row, and feeding no row fewer than two
tokens (the last cached one again), so that attention never takes its single-token path.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTH = 48
PIECES = (5, 1, 1, 7, 2, 1, 16, 1, 4, 10)
NEIGHBOURS = (13, 40, 3)


@dataclass
class Row:
    """One forward after the other, under the rules."""

    model: Any
    ids: Any  # [rows, LENGTH]
    multiple: int
    least: int

    def feed(self, executor: Any, counts: dict[int, int]) -> Any:
        """Feed `counts[r]` new tokens to rows; logits of row 0's new tokens, [n, V]."""
        import torch

        from draftproof.types import RaggedTokens

        new = counts[0]
        for row in counts:  # rows that would be too narrow feed cached tokens again
            again = min(executor.lengths[row], max(0, self.least - counts[row]))
            executor.truncate(row, executor.lengths[row] - again)
            counts[row] += again
        total = sum(counts.values())
        filler = -total % self.multiple
        spare = executor.rows - 1
        if filler:
            executor.release(spare)
            counts = counts | {spare: filler}
        rows = sorted(counts)
        starts = [executor.lengths[row] for row in rows]
        flat = [
            self.ids[row, start : start + counts[row]]
            for row, start in zip(rows, starts, strict=True)
        ]
        logits = executor.forward(
            RaggedTokens(
                ids=torch.cat(flat),
                rows=rows,
                starts=starts,
                counts=[counts[row] for row in rows],
                keep=[counts[row] if row == 0 else 0 for row in rows],
            )
        )
        return logits[counts[0] - new :]

    def run(self, pieces: Sequence[int], neighbours: Sequence[int]) -> Any:
        """Row 0 in pieces, the others beside its first piece and then a token each: [LENGTH, V]."""
        import torch

        from draftproof.numerics.shapes import FAST

        executor = self.model.executor(len(self.ids), 256, None, FAST)
        logits = []
        for step, piece in enumerate(pieces):
            widths = neighbours if step == 0 else [1] * len(neighbours)
            counts = {0: piece} | dict(enumerate(widths, 1))
            logits.append(self.feed(executor, counts))
        return torch.cat(logits)


def main() -> None:
    """One JSON line per combination of type, threads and rules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--multiples", default="1,16,64")
    parser.add_argument("--least", default="1,2")
    arguments = parser.parse_args()

    import torch

    from draftproof.executors.openvino.compiled import Settings
    from draftproof.executors.openvino.model import PagedModel

    generator = torch.Generator().manual_seed(0)
    for dtype, threads in itertools.product(
        arguments.dtypes.split(","), map(int, arguments.threads.split(","))
    ):
        model = PagedModel.open(arguments.model, Settings(dtype=dtype, num_threads=threads))
        high = min(4000, model.vocab_size)
        ids = torch.randint(5, high, (len(NEIGHBOURS) + 2, 200), generator=generator)
        for multiple, least in itertools.product(
            map(int, arguments.multiples.split(",")), map(int, arguments.least.split(","))
        ):
            row = Row(model, ids, multiple, least)
            whole = row.run([LENGTH], [])
            others = {
                "pieces": row.run(PIECES, []),
                "single tokens": row.run([8] + [1] * (LENGTH - 8), []),
                "neighbours": row.run([LENGTH], NEIGHBOURS),
                "neighbours, pieces": row.run(PIECES, NEIGHBOURS),
            }
            line: dict[str, Any] = {"dtype": dtype, "threads": threads}
            line |= {"multiple": multiple, "least": least}
            for name, logits in others.items():
                same = int((logits == whole).all(-1).sum())
                line[name] = f"{same}/{LENGTH}"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
