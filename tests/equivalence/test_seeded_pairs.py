"""Seeded speculative decoding is seeded plain decoding, on trained models and at length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import draftproof
from draftproof.models import DEMO_PROMPTS, demo_paths
from draftproof.testing import assert_same_tokens

WAYS = [(1, 2), (1, 4), (8, 0), (8, 2), (8, 4)]  # B and K, against B = 1 and K = 0
BOTH = pytest.mark.parametrize("temperature", [0.7, 1.0])
EVERY = pytest.mark.parametrize(("rows", "count"), WAYS)


def demo_prompts(count: int) -> list[str]:
    """Pieces of the demo prompts, 1 to 24 words long, all different."""
    words = " ".join(DEMO_PROMPTS).split()
    pieces = [
        " ".join(words[start : start + 1 + start % 24]) for start in range(0, len(words) - 24, 2)
    ]
    return list(dict.fromkeys(pieces))[:count]


@dataclass(frozen=True)
class Workload:
    """A pair, prompts, and what plain decoding makes of them one at a time, found once."""

    pair: Any
    prompts: list[str]
    new: int

    def decode(self, temperature: float, rows: int, count: int) -> list[Any]:
        results: list[Any] = self.pair.generate(
            self.prompts,
            max_new_tokens=self.new,
            temperature=temperature,
            seed=11,
            max_num_seqs=rows,
            num_speculative_tokens=count,
        )
        return results

    @cache  # noqa: B019
    def plain(self, temperature: float) -> list[list[int]]:
        return [result.token_ids for result in self.decode(temperature, 1, 0)]

    def check(self, temperature: float, rows: int, count: int) -> float:
        """Raise AssertionError unless all rows are plain's; the acceptance rate."""
        results = self.decode(temperature, rows, count)
        label = f"temperature {temperature}, B {rows}, K {count}"
        assert_same_tokens([r.token_ids for r in results], self.plain(temperature), label)
        drafted = sum(result.stats.num_draft_tokens for result in results)
        rate = sum(result.stats.num_accepted_draft_tokens for result in results) / max(1, drafted)
        print(f"{label}: {len(results)} of {len(results)} equal, accepted {rate:.3f}")
        return rate

    __hash__ = object.__hash__


def demo_workload(count: int, new: int) -> Workload:
    target, draft = demo_paths()
    prompts = demo_prompts(count)
    assert len(prompts) == count
    return Workload(draftproof.load(target, draft, dtype="float32"), prompts, new)


@pytest.fixture(scope="module")
def few() -> Workload:
    return demo_workload(4, 20)


@pytest.fixture(scope="module")
def many() -> Workload:
    return demo_workload(200, 64)


@pytest.fixture(scope="module")
def spec_bench(real_models: Path, shared_folder: Path) -> Workload:
    lines = (shared_folder / "data/spec_bench/question.jsonl").read_text("utf-8").splitlines()
    # from all categories
    prompts = [json.loads(line)["turns"][0][:400] for line in lines[:: len(lines) // 24][:24]]
    pair = draftproof.load(real_models / "smollm2", "ngram", dtype="float32")
    return Workload(pair, prompts, 64)


@BOTH
def test_demo_pair(few: Workload, temperature: float) -> None:
    assert few.check(temperature, 1, 2) > 0.2
    assert few.check(temperature, 4, 4) > 0.2


@pytest.mark.slow
@BOTH
@EVERY
def test_demo_pair_at_length(many: Workload, temperature: float, rows: int, count: int) -> None:
    many.check(temperature, rows, count)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.real_model
@BOTH
@EVERY
def test_spec_bench(spec_bench: Workload, temperature: float, rows: int, count: int) -> None:
    spec_bench.check(temperature, rows, count)
