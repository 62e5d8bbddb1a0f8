"""What the reference makes of some prompts, computed once and cut to what a request asks for."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from draftproof.reference import reference
from draftproof.testing.comparing import random_prompts
from draftproof.testing.drafters import ScriptedDrafter

SPARE = 8  # tokens beyond what is asked for, so that a full block can always be drafted


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """Prompts and their greedy continuations by the reference, none of them cut at an eos."""

    model: Any
    prompts: list[list[int]]
    continuations: list[list[int]] = field(repr=False)

    @classmethod
    def of(cls, model: Any, lengths: Sequence[int], *, tokens: int, seed: int = 0) -> Oracle:
        """Random prompts of the given lengths, continued by `tokens` tokens and a few to spare."""
        vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        prompts = random_prompts(lengths, seed=seed, vocab_size=vocab_size)
        return cls.ask(model, prompts, tokens=tokens)

    @classmethod
    def ask(cls, model: Any, prompts: list[list[int]], *, tokens: int) -> Oracle:
        """The continuations of given prompts."""
        new = [reference(model, prompt, tokens + SPARE) for prompt in prompts]
        return cls(model=model, prompts=prompts, continuations=new)

    def pick(self, indices: Sequence[int]) -> Oracle:
        """Some of the prompts, in the given order."""
        return Oracle(
            model=self.model,
            prompts=[self.prompts[i] for i in indices],
            continuations=[self.continuations[i] for i in indices],
        )

    def expected(
        self, max_new_tokens: int | Sequence[int], eos: Sequence[Sequence[int]] | None = None
    ) -> list[list[int]]:
        """New tokens of every prompt, ended by length or the first eos, which is kept.

        eos: the ids that end a row, for each prompt; None: nothing does
        """
        count = len(self.prompts)
        limits = [max_new_tokens] * count if isinstance(max_new_tokens, int) else max_new_tokens
        ends = [()] * count if eos is None else eos
        return [
            cut_at(tokens[:limit], end)
            for tokens, limit, end in zip(self.continuations, limits, ends, strict=True)
        ]

    def drafter(self, wrong_at: int | Sequence[int], **options: Any) -> ScriptedDrafter:
        """Drafts these continuations with a mistake at a chosen offset; see ScriptedDrafter."""
        return ScriptedDrafter(continuations=self.continuations, wrong_at=wrong_at, **options)


def cut_at(tokens: Sequence[int], eos: Sequence[int]) -> list[int]:
    """Tokens up to and including the first one that is in `eos`."""
    end = next((index for index, token in enumerate(tokens) if token in eos), len(tokens))
    return list(tokens[: end + 1])


@torch.no_grad()
def stock_generate(
    model: Any, prompt: Sequence[int], max_new_tokens: int, **options: Any
) -> list[int]:
    """transformers' own greedy `generate` on one prompt: the new token ids."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        **options,
    )
    new: list[int] = output[0, len(prompt) :].tolist()
    return new


@torch.no_grad()
def fresh_cache(model: Any, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, [kv_heads, len(tokens), D], from one plain forward."""
    cache = DynamicCache()
    parameters = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    model(input_ids=torch.tensor([list(tokens)]), use_cache=True, **{name: cache})
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]
