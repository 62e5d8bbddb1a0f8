"""This package's attention and experts, registered with transformers under one name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from draftproof.errors import UnsupportedModelError
from draftproof.numerics.attention import AttentionShape, attend_standard
from draftproof.numerics.linear import fill_rows, in_pieces, kind_of
from draftproof.numerics.shapes import Shapes, round_up

NAME = "draftproof"
PLAIN = Shapes(view=1)


class Layout(Protocol):
    """Where the tokens of one forward sit in the KV cache; given to every attention layer."""

    @property
    def shapes(self) -> Shapes:
        """Rounding rules of this forward."""

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the new tokens, [1, kv_heads, N, D], in a layer's cache."""

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [1, heads, N, D] -> output [1, N, heads, D]."""


def no_owner() -> None:
    return None


@dataclass(slots=True, eq=False)
class Binding:
    """Shared by a model's attention and linear modules.

    layout:  set while an executor's forward runs
    shapes:  set while transformers' own loop runs under this package's numerics
    lock:    held while a forward runs: a model serves one forward at a time
    holders: how many `BoundModel`s there are of the model
    owner:   refers to the `BoundModel`, while anything uses it
    kept:    the same, held as long as the model lives
    """

    layout: Layout | None = None
    shapes: Shapes | None = None
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    owner: Callable[[], Any] = no_owner
    holders: int = 0
    kept: Any = None

    @property
    def current(self) -> Shapes | None:
        """Rules of the forward that runs; None: it is neither of the two."""
        return self.shapes if self.layout is None else self.layout.shapes

    def __deepcopy__(self, memo: dict[int, Any]) -> Binding:
        """A copied model is bound to nothing."""
        return Binding()

    def __reduce__(self) -> tuple[Any, ...]:
        return Binding, ()


def attention_forward(
    module: nn.Module,
    query: Tensor,  # [B, heads, Q, D]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention registered with transformers as "draftproof".

    Inside an executor's forward the layout says which cache slots each query sees, and the mask
    that transformers made is ignored. Elsewhere (`model.generate`, training code) it is ordinary
    attention under the mask given.
    """
    if kwargs.get("position_bias") is not None:
        raise UnsupportedModelError(f"{type(module).__name__}: position_bias is not supported")
    shape = AttentionShape(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    binding: Binding | None = getattr(module, "draftproof", None)
    if binding is not None and binding.layout is not None:
        return binding.layout.attend(shape, query, key, value), None
    shapes = (None if binding is None else binding.shapes) or PLAIN
    return attend_standard(shape, query, key, value, attention_mask, shapes), None


def experts_forward(
    module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Mixture-of-experts layers: the rows an expert gets depend on the batch, so they are rounded.

    hidden [N, D], top_k_index and top_k_weights [N, k] -> [N, D]. Experts add to a token in
    ascending order, whatever other tokens they serve. Registered with transformers' experts
    interface (5.0 and later; before that experts are ordinary linears).
    """
    shapes = module.draftproof.current or PLAIN
    out = torch.zeros_like(hidden)
    for expert in top_k_index.unique().tolist():
        token, place = torch.where(top_k_index == expert)
        filled = fill_rows(hidden[token], round_up(len(token), shapes.tokens))
        rows = _expert(module, expert, filled, shapes)[: len(token)]
        out.index_add_(0, token, (rows * top_k_weights[token, place, None]).to(out.dtype))
    return out


def _expert(module: Any, expert: int, rows: Tensor, shapes: Shapes) -> Tensor:
    name = "gate_up_proj" if module.has_gate else "up_proj"
    up = _project(module, name, expert, rows, shapes)
    inner = module._apply_gate(up) if module.has_gate else module.act_fn(up)
    return _project(module, "down_proj", expert, inner, shapes)


def _project(module: Any, name: str, expert: int, rows: Tensor, shapes: Shapes) -> Tensor:
    weight = getattr(module, name)[expert]
    weight = weight.T if module.is_transposed else weight
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    rule = shapes.rows_of(kind_of(weight, bias=bias is not None))
    return in_pieces(lambda part: functional.linear(part, weight, bias), rows, rule)


with contextlib.suppress(ImportError):  # before 5.0 there is no such interface
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, experts_forward)

AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, sdpa_mask)


class Switch:
    """Points every config of a model at this package's attention and experts, and back again."""

    def __init__(self, model: nn.Module) -> None:
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        # models without experts have no experts implementation to switch
        self.places = [
            (config, name)
            for config in configs.values()
            for name in ("_attn_implementation", "_experts_implementation")
            if getattr(config, name, None) is not None or name == "_attn_implementation"
        ]
        self.before: list[Any] = []

    def __enter__(self) -> None:
        self.before = [getattr(config, name) for config, name in self.places]
        try:
            for config, name in self.places:
                setattr(config, name, NAME)
        except BaseException:  # Ctrl-C may come at any line
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        for (config, name), value in zip(self.places, self.before, strict=True):
            setattr(config, name, value)
