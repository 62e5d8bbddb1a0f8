"""What the modules of a model put out while it runs, token by token."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[str, int]  # a module's name, and which of its calls in one forward
Place = tuple[int, int]  # row, position
LOGITS: Call = ("logits", 0)


@dataclass(slots=True)
class Heard:
    """Output vectors in float32 by module call and place; calls in the order they were made.

    A place that is fed again, after a rollback, holds what was put out last.
    """

    calls: dict[Call, dict[Place, Tensor]] = field(default_factory=dict)

    def add(self, call: Call, places: Sequence[Place | None], outputs: Tensor) -> None:
        """outputs [N, D], one for each place; None: a filler token."""
        kept = self.calls.setdefault(call, {})
        rows = outputs.detach().to("cpu", torch.float32)
        for place, row in zip(places, rows, strict=True):
            if place is not None:
                kept[place] = row


class Listener:
    """Hooks on the modules of a model that keep what they put out for every token.

    skipped: modules that do nothing, and need no hook
    place:   asked at the start of every forward with its number of tokens: which they are
    """

    def __init__(self, model: nn.Module, skipped: Sequence[nn.Module]) -> None:
        idle = {id(module) for layer in skipped for module in layer.modules()}
        self.model = model
        self.modules = [(n, m) for n, m in model.named_modules() if n and id(m) not in idle]
        self.heard = Heard()
        self._places: list[Place | None] = []
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def listening(self, place: Callable[[int], list[Place | None]]) -> Iterator[Heard]:
        """Everything that is heard until the end of the block."""
        self.heard = Heard()

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._places = place(_tokens_of(args, kwargs))
            self._calls.clear()

        hooks = [self.model.register_forward_pre_hook(begin, with_kwargs=True)]
        hooks += [m.register_forward_hook(self._hook(name)) for name, m in self.modules]
        try:
            yield self.heard
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            call = name, self._calls[name]
            self._calls[name] += 1
            rows = _per_token(first, len(self._places))
            if rows is not None:
                self.heard.add(call, self._places, rows)

        return hook


def _tokens_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many tokens a forward is given."""
    names = ("input_ids", "inputs_embeds")
    given = (value for value in (*(kwargs.get(name) for name in names), *args) if value is not None)
    first = next(given)
    return int(first.shape[1]) * int(first.shape[0])


def _per_token(output: object, count: int) -> Tensor | None:
    """[1, N, D], or [N, D] -> [N, D]; None for what is not a vector per token."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return None
    if output.dim() == 3 and tuple(output.shape[:2]) == (1, count):
        return output[0]
    return output if output.dim() == 2 and output.shape[0] == count else None
