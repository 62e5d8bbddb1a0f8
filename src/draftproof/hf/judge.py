"""A model's own `generate`, listened to: the judge of whatever is done in its place."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationConfig
from transformers.generation import LogitsProcessorList

from draftproof.errors import UnsupportedModelError
from draftproof.hf.bound import BoundModel
from draftproof.hf.capability import text_config
from draftproof.hf.kernels import Switch
from draftproof.hf.listening import LOGITS, Heard, Listener, Place

# keys and values of each layer, each [1, kv_heads, cached, D]; None: it does not run
Memory = list[tuple[Tensor, Tensor] | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One row of the comparison: a prompt, and tokens that are fed one by one behind it.

    tokens: all that is fed, prompt included, and what is cached
    prompt: how many of them the first forward has read when it is done
    cached: how many of them are in the cache before, as `memory` has them
    """

    tokens: list[int]
    prompt: int
    cached: int = 0
    memory: Memory = field(default_factory=list)


@torch.inference_mode()
def own_outputs(
    bound: BoundModel,
    judge: Any,
    listener: Listener,
    passages: Sequence[Passage],
    *,
    our_kernel: bool = False,
) -> Heard:
    """What every module puts out when `judge.generate` reads each passage alone.

    judge:      the model as it was given, which may be a wrapper around the one that is bound
    our_kernel: under this package's attention kernel, in the masks that transformers makes
    Raises UnsupportedModelError when `generate` fails, or feeds other tokens than it was given.
    """
    whole = Heard()
    with _plain_defaults(bound.model), Switch(bound.model) if our_kernel else _nothing():
        for row, passage in enumerate(passages):
            heard = _one(bound, judge, listener, passage, row)
            for call, places in heard.calls.items():
                whole.calls.setdefault(call, {}).update(places)
    return whole


def _one(bound: BoundModel, judge: Any, listener: Listener, passage: Passage, row: int) -> Heard:
    name = type(bound.model).__name__
    script = _Script(passage, row, name)
    with listener.listening(script.places) as heard:
        try:
            judge.generate(
                torch.tensor([passage.tokens[: passage.prompt]], device=bound.device),
                attention_mask=torch.ones(1, passage.prompt, dtype=torch.int64).to(bound.device),
                generation_config=_settings(len(passage.tokens) - passage.prompt + 1),
                logits_processor=LogitsProcessorList([script.choose]),
                **_memory(bound, passage),
            )
        except UnsupportedModelError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"{name}: its own generate, which outputs are compared with, fails: "
                f"{type(error).__name__}: {error}"
            ) from error
    for position, logits in script.scores.items():
        heard.add(LOGITS, [(row, position)], logits)
    return heard


class _Script:
    """Makes `generate` go on with given tokens, and says which of them a forward reads."""

    def __init__(self, passage: Passage, row: int, name: str) -> None:
        self.passage, self.row, self.name = passage, row, name
        self.end = passage.prompt  # tokens that the next forward will have read
        self.scores: dict[int, Tensor] = {}

    def places(self, count: int) -> list[Place | None]:
        """The tokens of a forward: the last `count` that there are."""
        if count > self.end:
            raise UnsupportedModelError(
                f"{self.name}: its prepare_inputs_for_generation feeds {count} tokens where "
                f"{self.end} were given (prompt tuning?); tokens that are no tokens of the prompt "
                "are not supported"
            )
        return [(self.row, position) for position in range(self.end - count, self.end)]

    def choose(self, ids: Tensor, scores: Tensor) -> Tensor:
        """scores [1, V] -> all but the next token forbidden."""
        self.scores[self.end - 1] = scores.clone()
        self.end += 1
        tokens = self.passage.tokens
        forced = torch.full_like(scores, -torch.inf)
        forced[:, tokens[min(self.end, len(tokens)) - 1]] = 0
        return forced


def _settings(new: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=new, do_sample=False, num_beams=1, use_cache=True, pad_token_id=0
    )


@contextlib.contextmanager
def _plain_defaults(model: Any) -> Iterator[None]:
    """`generate` fills in what the model's own settings say: penalties, beams, an eos."""
    before = model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=0)
    try:
        yield
    finally:
        model.generation_config = before


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def _memory(bound: BoundModel, passage: Passage) -> dict[str, Cache]:
    """The cache argument of `generate`, filled; none for an empty one, which it makes itself."""
    if not passage.cached:
        return {}
    cache = DynamicCache(config=text_config(bound.model))
    for index, pair in enumerate(passage.memory):
        if pair is not None:
            cache.update(*pair, index)
    parameters = inspect.signature(bound.model.forward).parameters
    return {"cache" if "cache" in parameters else "past_key_values": cache}


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, without dropout; each module's own mode is restored."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
