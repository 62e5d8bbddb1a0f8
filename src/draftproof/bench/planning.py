"""A dry run: what would be run, how much memory it takes, and about how long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftproof.bench.cells import Cell, method_of
from draftproof.bench.metrics import expected_emitted
from draftproof.bench.pairs import ITEMSIZE, Facts

GUESSED_ACCEPTANCE = 0.6
GUESSED_PROMPT = 150  # tokens, the mean of Spec-Bench's first turns
EFFICIENCY = 0.5  # of what the probes reach


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What a device can do: bytes read per second, and floating point operations per second."""

    name: str
    bandwidth: float
    compute: float

    def seconds(self, facts: Facts, tokens: float, itemsize: int) -> float:
        """One forward: the weights are read once, and every token multiplies with all of them."""
        reading = facts.weight_bytes(itemsize) / self.bandwidth
        return max(reading, 2 * facts.parameters * tokens / self.compute) / EFFICIENCY


A100 = Speed(name="an A100 80GB, as in the paper", bandwidth=2.0e12, compute=312e12)


def this_machine(device: torch.device) -> Speed:
    """Measured in a moment: a copy and a matrix product."""
    source = torch.ones(1 << 24, device=device)
    square = torch.ones(1024, 1024, device=device)
    target = torch.empty_like(source)
    copying = _seconds(lambda: target.copy_(source), device)
    multiplying = _seconds(lambda: square @ square, device)
    return Speed(
        name=f"this machine ({device})",
        bandwidth=2 * source.nbytes / copying,
        compute=2 * 1024**3 / multiplying,
    )


def _seconds(work: Any, device: torch.device) -> float:
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What one cell takes."""

    cell: Cell
    kv_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Planner:
    """Estimates for one pair of models on one device. They are rough: half or double is usual."""

    target: Facts
    draft: Facts
    speed: Speed
    max_input_len: int

    def estimate(self, cells: Sequence[Cell]) -> list[Estimate]:
        """One for each cell."""
        return [
            Estimate(cell=cell, kv_bytes=self.kv_bytes(cell), seconds=self.seconds(cell))
            for cell in cells
        ]

    def weight_bytes(self, dtype: str) -> float:
        """Both models."""
        itemsize = ITEMSIZE.get(dtype, 2)
        return self.target.weight_bytes(itemsize) + self.draft.weight_bytes(itemsize)

    def kv_bytes(self, cell: Cell) -> int:
        """Both caches, if the longest prompt allowed is among the prompts."""
        method = method_of(cell.way, cell.method_options)
        itemsize, prompt = ITEMSIZE.get(cell.dtype, 2), cell.length or self.max_input_len
        rows = min(method.pool(cell.batch_size), max(cell.num_prompts, cell.batch_size))
        slots = method.slots(prompt + cell.max_new_tokens, cell.drafted)
        models = [self.target, self.draft] if cell.drafted else [self.target]
        return rows * slots * sum(facts.kv_bytes(itemsize) for facts in models)

    def seconds(self, cell: Cell) -> float:
        """Reading the prompts, and as many rounds as the guessed acceptance makes necessary."""
        itemsize, k = ITEMSIZE.get(cell.dtype, 2), cell.drafted
        size = min(cell.batch_size, cell.num_prompts)
        prompt = cell.length or GUESSED_PROMPT
        rounds = cell.tokens / expected_emitted(GUESSED_ACCEPTANCE, k) / size
        step = self.speed.seconds(self.target, size * (k + 1), itemsize)
        step += k * self.speed.seconds(self.draft, size, itemsize)
        models = [self.target, self.draft] if k else [self.target]
        reading = sum(self.speed.seconds(facts, prompt, itemsize) for facts in models)
        return rounds * step + cell.num_prompts * reading
