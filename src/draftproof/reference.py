"""The slow oracle: one row, no draft, no batch, no cache, no code shared with the engine.

Every token is the argmax of a fresh forward over the whole sequence, with transformers' own
attention. Slow and obvious; everything else is tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


@torch.no_grad()
def next_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after the last token, [V], from a forward without any cache."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0, -1]
    return logits


def reference(
    model: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    eos_token_id: Sequence[int] = (),
    min_new_tokens: int = 0,
    stopped: Callable[[list[int]], bool] | None = None,
    choose: Callable[[torch.Tensor, list[int]], int] | None = None,
) -> list[int]:
    """Continuation of one prompt, greedy by default: the new token ids, a final eos included.

    stopped: told the new ids after each one, returns True to end there (stop strings)
    choose:  told the logits [V] and all tokens so far, returns the next token (for sampling)
    """
    tokens, new = list(prompt), list[int]()
    while len(new) < max_new_tokens:
        logits = next_logits(model, tokens)
        if len(new) < min_new_tokens:
            logits[list(eos_token_id)] = -torch.inf
        token = int(logits.argmax()) if choose is None else choose(logits, tokens)
        tokens.append(token)
        new.append(token)
        ends = token in eos_token_id or (stopped is not None and stopped(new))
        if ends and len(new) >= min_new_tokens:
            break
    return new
