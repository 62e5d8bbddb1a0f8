"""However K is chosen, and however it changes from round to round, the tokens are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from draftproof import Pair
from draftproof.batch import Row
from draftproof.engine.engine import Engine
from draftproof.testing import tiny_model
from draftproof.testing.engines import assert_cache_is_fresh, prepared

PROMPTS = [[3, 5, 7, 5, 7], [11, 12], [9] * 14, [1, 2, 3, 4, 1, 2, 3]]
COMMON: dict[str, Any] = {"max_new_tokens": 30, "max_num_seqs": 3, "debug": True}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "seed": 4}


@dataclass
class Restless:
    """Another K for every row in every round, and often none for many rounds."""

    draw: random.Random = field(default_factory=lambda: random.Random(3))

    def choose(self, rows: Sequence[Row], most: Sequence[int], reading: int) -> list[int]:
        quiet = self.draw.random() < 0.5
        return [0 if quiet else self.draw.randint(0, limit) for limit in most]


@pytest.fixture(scope="module", params=["model", "ngram"])
def pair(request: pytest.FixtureRequest) -> Pair:
    draft: Any = tiny_model(seed=2) if request.param == "model" else "ngram"
    return Pair(tiny_model(seed=1), draft)


def finish(engine: Engine, *, checked: bool = False) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for commits in engine.run():
        found |= {commit.row.request.index: commit.row.emitted for commit in commits}
        executor = getattr(engine.drafter, "executor", None)
        if checked and executor is not None:
            for row in engine.batch:
                assert_cache_is_fresh(executor, row.slot, row.tokens)
    return [found[index] for index in sorted(found)]


def plain(pair: Pair, **options: Any) -> list[list[int]]:
    return finish(prepared(pair, PROMPTS, num_speculative_tokens=0, **COMMON, **options))


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("most", [1, 8])
def test_auto_changes_no_token(pair: Pair, options: dict[str, Any], most: int) -> None:
    drafting = {"num_speculative_tokens": "auto", "max_num_speculative_tokens": most}
    for _ in range(3):  # what was learned changes what is chosen
        found = finish(prepared(pair, PROMPTS, **drafting, **COMMON, **options))
        assert found == plain(pair, **options)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "seeded"])
def test_k_may_change_in_every_round(pair: Pair, options: dict[str, Any]) -> None:
    engine = prepared(pair, PROMPTS, num_speculative_tokens=6, **COMMON, **options)
    engine.scheduler.schedule = Restless()
    assert finish(engine, checked=True) == plain(pair, **options)


def test_rejection_sampling_is_the_same_in_every_run() -> None:
    """Its tokens depend on the drafts, so that K must not depend on the clock."""
    options = {**SAMPLED, "coupling": "rejection", "num_speculative_tokens": "auto"}
    runs = []
    for _ in range(2):
        pair = Pair(tiny_model(seed=1), tiny_model(seed=2))
        runs += [finish(prepared(pair, PROMPTS, **COMMON, **options)) for _ in range(2)]
    assert all(run == runs[0] for run in runs)
