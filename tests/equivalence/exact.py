"""Runs in the exact tier with their logits: what the tests of bit for bit equality compare."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftproof import Pair
from draftproof.executors.calibration import calibrate, require
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import Shapes
from draftproof.testing import ScriptedDrafter, prepared, random_prompts, scored_run, tiny_model
from draftproof.types import RaggedTokens

NEW_TOKENS = 8
# one token, the edges of a vector, of the views that are left out, and of the kernel's key block
LENGTHS = (3, 1, 15, 60, 17, 200, 7, 380, 508)

# what the names of the tests stand for: an architecture, and what is changed about it
SUBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, heads of 64, tied": (
        "llama",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64, "hidden_size": 192}
        | {"tie_word_embeddings": True},
    ),
    "mistral, sliding window": ("mistral", {}),
    "gemma2, softcap": ("gemma2", {"final_logit_softcapping": 5.0}),
    "gemma3, two rotary tables": ("gemma3_text", {}),
    "gpt2, conv1d": ("gpt2", {}),
    "mixtral, experts": ("mixtral", {}),
    "qwen3_moe, experts": ("qwen3_moe", {}),
    "llama, odd width": ("llama", {"intermediate_size": 45}),
    # The sizes of SmolLM2-135M: with AMX, 16-bit products of these mind how many rows there are,
    # which those of the tiny models above do not.
    "llama, real width": (
        "llama",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_size": 576}
        | {"intermediate_size": 1536, "tie_word_embeddings": True},
    ),
}
# As in all real models, what functions of single elements work on fills whole vectors, of
# AVX-512 too: transformers' own loop rounds no rows for them (docs/numerics.md).
WIDTHS = {"intermediate_size": 64, "moe_intermediate_size": 64}


@functools.cache
def subject(name: str, dtype: torch.dtype, seed: int = 1) -> Any:
    """A tiny model with room for 2,048 tokens."""
    architecture, changes = SUBJECTS[name]
    settings = {"max_position_embeddings": 2048, **WIDTHS, **changes}
    model = tiny_model(architecture, seed=seed, **settings)
    return model.to(dtype)


@functools.cache
def shapes_of(name: str, dtype: torch.dtype) -> Shapes:
    """What the calibration found for a subject."""
    return require(calibrate(BoundModel(subject(name, dtype))))


@dataclass(frozen=True)
class Run:
    """What came of one call of `generate`, by prompt: new ids, and the logits [new, V] of each."""

    ids: list[list[int]]
    logits: list[Tensor]

    def differences(self, other: Run) -> list[str]:
        """Rows in which ids or logits differ, and at which new token first."""
        found = []
        for row, (ours, theirs) in enumerate(zip(self.ids, other.ids, strict=True)):
            if ours != theirs:
                found.append(f"row {row}: ids {ours} and {theirs}")
            elif not torch.equal(self.logits[row], other.logits[row]):
                same = (self.logits[row] == other.logits[row]).all(-1)
                found.append(f"row {row}: logits from new token {int(same.int().argmin())} on")
        return found


def run(pair: Pair, prompts: Sequence[list[int]], order: Sequence[int], **options: Any) -> Run:
    """Decode prompts admitted in the given order; the results are in the order of the prompts."""
    new = options.pop("max_new_tokens", NEW_TOKENS)
    limits = [new] * len(prompts) if isinstance(new, int) else new
    queued = [prompts[i] for i in order]
    engine = prepared(pair, queued, max_new_tokens=[limits[i] for i in order], **options)
    found = scored_run(engine, torch.clone)
    ids, logits = [], []
    for index in (list(order).index(prompt) for prompt in range(len(prompts))):
        row, scored = found[index]
        ids.append(row.emitted)
        logits.append(torch.stack(scored))
    return Run(ids, logits)


def alone(pair: Pair, prompts: Sequence[list[int]], **options: Any) -> Run:
    """Plain decoding, one row at a time."""
    settings = {"max_num_seqs": 1, "num_speculative_tokens": 0, **options}
    return run(pair, prompts, range(len(prompts)), **settings)


@functools.cache
def reference(name: str, dtype: torch.dtype) -> tuple[list[list[int]], Run]:
    """Prompts of all LENGTHS, and what the exact tier makes of each alone."""
    prompts = random_prompts(LENGTHS, seed=3)
    pair = Pair(subject(name, dtype), numerics="exact")
    return prompts, alone(pair, prompts, max_new_tokens=NEW_TOKENS)


def cut(whole: Run, limits: Sequence[int]) -> Run:
    """The first tokens of every row."""
    return Run(
        [ids[:n] for ids, n in zip(whole.ids, limits, strict=True)],
        [logits[:n] for logits, n in zip(whole.logits, limits, strict=True)],
    )


@dataclass(frozen=True)
class Setting:
    """One way to decode the same prompts."""

    drafter: str
    max_num_seqs: int
    num_speculative_tokens: int
    max_num_batched_tokens: int
    order: tuple[int, ...]
    limits: tuple[int, ...]

    def pair(self, name: str, dtype: torch.dtype) -> Pair:
        """The subject in the exact tier with this setting's drafter."""
        right = reference(name, dtype)[1].ids
        drafts = {
            "none": None,
            "ngram": "ngram",
            "model": subject(name, dtype, seed=2),
            "itself": subject(name, dtype),
            # the engine numbers requests in the order of admission
            "scripted": ScriptedDrafter(
                continuations=[right[i] for i in self.order],
                wrong_at=[i % 10 for i in self.order],
            ),
        }
        return Pair(subject(name, dtype), drafts[self.drafter], numerics="exact")

    def run(self, name: str, dtype: torch.dtype) -> Run:
        return run(
            self.pair(name, dtype),
            reference(name, dtype)[0],
            self.order,
            max_new_tokens=self.limits,
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
            debug=True,
        )


def settings(seed: str, count: int) -> Iterator[Setting]:
    """Settings drawn from a seed: batch sizes 1 .. 32, K 0 .. 8, every kind of drafter in turn."""
    draw = random.Random(seed)
    for number in range(count):
        order = draw.sample(range(len(LENGTHS)), len(LENGTHS))
        yield Setting(
            drafter=("scripted", "model", "ngram", "itself", "none")[number % 5],
            max_num_seqs=draw.choice((2, 3, 4, 5, 8, 9, 32)),
            num_speculative_tokens=draw.randint(0, 8),
            max_num_batched_tokens=draw.choice((16, 37, 100, 512, 2000)),
            order=tuple(order),
            limits=tuple(draw.choice((1, 4, NEW_TOKENS)) for _ in LENGTHS),
        )


def prefill(name: str, dtype: torch.dtype, tokens: Sequence[int], shapes: Shapes) -> Tensor:
    """Logits [len(tokens), V] of one forward over the whole sequence."""
    executor = RowsExecutor(
        model=BoundModel(subject(name, dtype)), rows=1, capacity=len(tokens), shapes=shapes
    )
    count = [len(tokens)]
    return executor.forward(
        RaggedTokens(ids=torch.tensor(tokens), rows=[0], starts=[0], counts=count, keep=count)
    )


def without(shapes: Shapes, **changes: Any) -> Shapes:
    """The calibrated shapes with one rounding switched off."""
    return replace(shapes, **changes)
