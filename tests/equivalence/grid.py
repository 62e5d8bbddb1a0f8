"""The grid of configurations in which every architecture must equal the reference."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftproof.testing import WINDOW, Oracle, tiny_model

from .subjects import pair

NEW_TOKENS = 10
# around the window and beyond it, one token, and longer than every prefill budget of the grid
LENGTHS = (1, WINDOW - 1, 40, WINDOW, 60, WINDOW + 1)

DRAFTERS = (
    "none",
    "ngram",
    "draft model",
    "the target itself",
    "oracle",
    "always wrong",
    "junk ids",
)
SAMPLED = ("none", "ngram", "draft model", "the target itself", "oracle")
ROWS = (1, 3, 8)
DRAFTED = (1, 4)
BUDGETS = (8, 24, 512)  # tokens per round; the smaller ones cut prompts into chunks


@dataclass(frozen=True)
class Configuration:
    """One point of the grid."""

    drafter: str
    max_num_seqs: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    method: str = "rows"

    def run(self, subject: Subject) -> tuple[list[list[int]], list[list[int]]]:
        """Found and expected tokens, with every invariant checked in every round."""
        # one row at a time takes the longest and shows the least
        oracle = subject.oracle.pick(range(2)) if self.max_num_seqs == 1 else subject.oracle
        draft = subject.drafter(self.drafter, oracle)
        results = pair(subject.model, draft, method=self.method).generate(
            oracle.prompts,
            max_new_tokens=NEW_TOKENS,
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            debug=True,
        )
        return [result.token_ids for result in results], oracle.expected(NEW_TOKENS)


@dataclass(frozen=True)
class Subject:
    """A tiny model, another one of its family, and what the reference says."""

    name: str
    model: Any
    draft: Any
    oracle: Oracle

    @classmethod
    def of(cls, name: str) -> Subject:
        model = tiny_model(name, seed=1)
        oracle = Oracle.of(model, LENGTHS, tokens=NEW_TOKENS, seed=5)
        return cls(name, model, tiny_model(name, seed=2), oracle)

    def drafter(self, name: str, oracle: Oracle) -> Any:
        """What `Pair` takes as draft."""
        every_offset = [index % 5 for index in range(len(oracle.prompts))]
        makers = {
            "none": lambda: None,
            "ngram": lambda: "ngram",
            "draft model": lambda: self.draft,
            "the target itself": lambda: self.model,
            "oracle": lambda: oracle.drafter(every_offset),
            "always wrong": lambda: oracle.drafter(0),
            "junk ids": lambda: oracle.drafter(2, wrong=10**6),
        }
        return makers[name]()


def full_grid(method: str = "rows") -> Iterator[Configuration]:
    """Every configuration."""
    points = itertools.product(DRAFTERS, ROWS, DRAFTED, BUDGETS, [method])
    return itertools.starmap(Configuration, points)


def sample(name: str) -> Iterator[Configuration]:
    """The drafters that differ most, each in a setting drawn from the architecture's name."""
    draw = random.Random(name)
    for drafter in SAMPLED:
        yield Configuration(drafter, draw.choice(ROWS), draw.choice(DRAFTED), draw.choice(BUDGETS))
