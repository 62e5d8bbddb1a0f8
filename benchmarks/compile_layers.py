#!/usr/bin/env python3
"""torch.compile on what lies between the kernels of a decoder layer: how fast, and are bits kept?

    python benchmarks/compile_layers.py [--hidden N --mlp N --heads N --kv-heads N] [--output F]

A layer without its attention, in bfloat16 with packed weights: in Python, as TorchScript (as
`numerics/stack.py` runs whole models), and with norm, rotation, residual and gate compiled by
inductor, which emulates the casts of eager code or does not, the former also without looking at its
guards. (The products cannot be inside:
inductor takes packed weights as frozen constants only, which would be a compilation per layer.) One
JSON line per number of tokens: microseconds (medians, in turns), seconds to compile the four
regions, and the share of output numbers whose bits are those of the eager kernels. Needs a C++
compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.numerics.torch_private import pack, packed_linear

HEAD = 64
ROUNDS = 40

Region = Callable[..., Any]


def norm(hidden: Tensor, weight: Tensor) -> Tensor:
    """As `numerics/stack.py` has it."""
    wide = hidden.to(torch.float32)
    variance = wide.pow(2).mean(-1, True)
    return weight * (wide * torch.rsqrt(variance + 1e-5)).to(hidden.dtype)


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """A packed linear."""
    return packed_linear(rows, weight, None)


def turn(turning: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated heads."""
    return turning * cos + turning.roll([32], [2]) * sin


def join(hidden: Tensor, new: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The residual stream, and its norm."""
    hidden = hidden + new
    return hidden, norm(hidden, scale)


def gate(both: Tensor) -> Tensor:
    """What goes into the down product."""
    one, other = both.chunk(2, -1)
    return functional.silu(one) * other


def around(regions: Sequence[Region]) -> Region:
    """A layer without attention, from norm, turn, join and gate."""
    normed, turned, joined, gated = regions

    def run(
        hidden: Tensor,
        seen: Tensor,
        cos: Tensor,
        sin: Tensor,
        scales: list[Tensor],
        weights: list[Tensor],
        heads: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        flat = product(normed(hidden, scales[0]), weights[0]).view(hidden.size(0), -1, 64)
        heads_turned = turned(flat[:, :heads], cos, sin)
        hidden, inner = joined(hidden, product(seen, weights[1]), scales[1])
        down = product(gated(product(inner, weights[2])), weights[3])
        return heads_turned, flat[:, heads:], hidden + down

    return run


def scripted(
    hidden: Tensor,
    seen: Tensor,
    cos: Tensor,
    sin: Tensor,
    scales: list[Tensor],
    weights: list[Tensor],
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for TorchScript, which takes no functions as arguments."""
    flat = product(norm(hidden, scales[0]), weights[0]).view(hidden.size(0), -1, 64)
    heads_turned = turn(flat[:, :heads], cos, sin)
    hidden, inner = join(hidden, product(seen, weights[1]), scales[1])
    down = product(gate(product(inner, weights[2])), weights[3])
    return heads_turned, flat[:, heads:], hidden + down


def main() -> None:
    """All token counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--mlp", type=int, default=1536)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--tokens", default="1,5,20,40")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = [measured(options, int(word)) for word in options.tokens.split(",")]
    if options.output:
        options.output.write_text("".join(json.dumps(line) + "\n" for line in lines))


@torch.inference_mode()
def measured(options: argparse.Namespace, count: int) -> dict[str, Any]:
    """One line."""
    inputs = given(options, count)
    eager = around((norm, turn, join, gate))
    ways: dict[str, Region] = {"python": eager, "script": torch.jit.script(scripted)}
    line: dict[str, Any] = {"tokens": count, "hidden": options.hidden}
    for name, emulate in (("compiled", False), ("emulating", True)):
        settings = {"emulate_precision_casts": emulate}
        regions = [
            torch.compile(f, dynamic=False, options=settings) for f in (norm, turn, join, gate)
        ]
        ways[name] = around(regions)
        start = time.perf_counter()
        ways[name](*inputs)
        line[f"{name}_to_compile_s"] = round(time.perf_counter() - start, 1)
    ways["unguarded"] = unguarded(ways["emulating"])
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            way(*inputs)
            times[name].append(time.perf_counter() - start)
    line |= {f"{name}_us": round(1e6 * statistics.median(found)) for name, found in times.items()}
    line |= {f"{name}_equal": share(way, eager, inputs) for name, way in ways.items()}
    print(json.dumps(line), flush=True)
    return line


def unguarded(way: Region) -> Region:
    """The same without asking whether the inputs are what was compiled for."""

    def run(*inputs: Any) -> Any:
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            return way(*inputs)

    return run


def share(way: Region, eager: Region, inputs: Sequence[Any]) -> float:
    """Of the numbers that are equal to Python's."""
    pairs = list(zip(way(*inputs), eager(*inputs), strict=True))
    return round(sum(int((a == b).sum()) for a, b in pairs) / sum(a.numel() for a, _ in pairs), 6)


def given(options: argparse.Namespace, count: int) -> Sequence[Any]:
    """Inputs of a layer."""
    generator = torch.Generator().manual_seed(count)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16)

    hidden, width = options.hidden, options.heads * HEAD
    turned, every = options.heads + options.kv_heads, options.heads + 2 * options.kv_heads
    sizes = [(every * HEAD, hidden), (hidden, width), (2 * options.mlp, hidden)]
    sizes.append((hidden, options.mlp))
    angles = torch.rand(count, 1, HEAD, generator=generator) * 6
    return (
        random(count, hidden),
        random(count, width),
        angles.cos().to(torch.bfloat16),
        angles.sin().to(torch.bfloat16),
        [random(hidden), random(hidden)],
        [pack(random(rows, columns, scale=columns**-0.5)) for rows, columns in sizes],
        turned,
    )


if __name__ == "__main__":
    main()
