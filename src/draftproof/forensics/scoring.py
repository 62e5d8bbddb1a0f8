"""Scores of known tokens by a transformers model in this process: in blocks, or at other positions.

Nothing of the engine is used: what is measured here must not share its mistakes.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from draftproof.forensics.subjects.base import Top
from draftproof.forensics.subjects.watching import tops_of


@torch.no_grad()
def score_in_blocks(
    model: Any, prompt: Sequence[int], ids: Sequence[int], block: int
) -> tuple[Top, ...]:
    """The likeliest tokens in front of each of `ids`, fed `block` at a time after the prompt.

    The shapes of a verifying forward without any drafter: what differs from one token at a time
    is arithmetic alone.
    """
    cache, tops = DynamicCache(), []
    pieces = [list(prompt)]
    pieces += [list(ids[i : i + block]) for i in range(0, max(0, len(ids) - 1), block)]
    # the keyword moved in transformers 5.24
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    for index, piece in enumerate(pieces):
        tokens = torch.tensor([piece], device=model.device)
        logits = model(input_ids=tokens, use_cache=True, **{name: cache}).logits[0]
        tops += tops_of(logits[-1:] if index == 0 else logits)
    return tuple(tops[: len(ids)])


@torch.no_grad()
def tops_at(model: Any, tokens: Sequence[int], positions: Sequence[int]) -> list[Top]:
    """The likeliest tokens after each of `tokens`, were they at these positions."""
    ids = torch.tensor([list(tokens)], device=model.device)
    places = torch.tensor([list(positions)], device=model.device)
    # without a mask, transformers would take a gap in the positions for the end of a sequence
    mask = torch.ones_like(ids)
    out = model(input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False)
    return tops_of(out.logits[0])


@torch.no_grad()
def distances(
    model: Any, tokens: Sequence[int], tried: Sequence[Sequence[int]], top: Top
) -> list[float]:
    """For each choice of positions: how far the gap of `top`'s two likeliest tokens is from the
    model's own, after the last of `tokens`."""
    ids = torch.tensor([list(tokens)] * len(tried), device=model.device)  # [P, L]
    places = torch.tensor([list(one) for one in tried], device=model.device)
    mask = torch.ones_like(ids)
    out = model(input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False)
    last = out.logits[:, -1].float()  # [P, V]
    gaps = last[:, top.ids[0]] - last[:, top.ids[1]]
    shown = top.values[0] - top.values[1]
    return [abs(shown - gap) for gap in gaps.tolist()]


@torch.no_grad()
def tops_after(model: Any, tokens: Sequence[int]) -> list[Top]:
    """The likeliest tokens after each of `tokens`, from one forward without a cache."""
    return tops_of(logits_after(model, tokens))


@torch.no_grad()
def logits_after(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """After each of `tokens`, [L, V] float32, from one forward without a cache."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float().cpu()
