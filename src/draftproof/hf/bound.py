"""A transformers model prepared for flat ragged forwards."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Cache

from draftproof.errors import UnsupportedModelError
from draftproof.hf.caches import Probe, ProbeCache
from draftproof.hf.capability import refuse_unsupported, text_config
from draftproof.hf.heap import give_back_freed_memory
from draftproof.hf.kernels import Binding, Switch, no_owner
from draftproof.hf.operations import (
    reading_together,
    restore_own_products,
    round_own_products,
)
from draftproof.hf.readiness import refuse_unready, zero_weights
from draftproof.hf.stack import FlatLayout, Stack, find_stack
from draftproof.hf.watching import Watch
from draftproof.numerics.linear import (
    CalibratedLinear,
    RoundedRows,
    calibrate_linears,
    pack_linears,
    restore_linears,
)
from draftproof.numerics.shapes import Shapes


class BoundModel:
    """A transformers model prepared for flat ragged forwards; the model itself stays usable.

    Its attention implementation is switched to "draftproof" only while `forward` runs, and so are
    its linears (`rewrite` says what was done to them); see `release`.

    owned:    nobody else uses the model: where weights are packed, its own are dropped
    lone_row: single rows will take the kernels of their own that shapes may allow; they read a
              16-bit weight where packed ones are float32, so that it is kept
    runs_stack: layers that are known run as one function

    What is made of a model is made once, and shared by whoever binds it again (`bound_already`).

    companions: by draft (the model itself where there is none), what is worth keeping between calls

    Raises UnsupportedModelError when the model cannot be decoded row by row.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        owned: bool = False,
        lone_row: bool = True,
        runs_stack: bool = True,
    ) -> None:
        refuse_unready(model)
        refuse_unsupported(model)
        self.model: Any = model
        self.config = text_config(model)
        self.vocab_size = int(self.config.vocab_size)
        self.stack: Stack | None = None
        self.proven: Any = None  # see executors.proof
        self.users = 0
        self.companions: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
        self._owned, self._lone_row, self.runs_stack = owned, lone_row, runs_stack
        self._binding = _bind(model)
        parameters = inspect.signature(model.forward).parameters
        # the keyword moved in 5.24; the old one still works there, with a deprecation warning
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._slices_logits = "logits_to_keep" in parameters
        # counted before any work: a former binding may be collected at any moment
        self._binding.holders += 1
        with self.lock:
            self._make_ready()
            self._binding.owner = weakref.ref(self)
        # whoever decodes with the model holds this: with the last of them it is given back
        self._finalizer = weakref.finalize(self, _leave, model, self._binding)
        self._finalizer.atexit = False
        if owned:
            self._finalizer.detach()

    def _make_ready(self) -> None:
        """Take the model as it is now: its modules, its weights, where they lie."""
        model = self.model
        self.device: torch.device = next(model.parameters()).device
        self._switch = Switch(model)
        linears = calibrate_linears(model, self._binding)
        round_own_products(model, self._binding)
        probe = Probe()
        groups = reading_together(model, linears, lambda: self._run(probe))
        self._refuse_uncontrolled(probe)
        self._groups, self._asked = groups, probe.asked
        self._pack(linears)
        self.layers = [probe.layers[index] for index in range(len(probe.layers))]
        self.attention_cases = list(probe.cases.values())
        self.stack = find_stack(model, probe.asked) if self.runs_stack else None

    def _pack(self, linears: list[CalibratedLinear]) -> None:
        shared = _shared_parameters(self.model)
        self.rewrite = pack_linears(
            linears,
            self._groups,
            lambda layer: (
                not self._owned
                or id(layer.weight) in shared
                or (self._lone_row and layer.product.wide)
            ),
        )
        if self.rewrite.dropped_bytes:
            give_back_freed_memory()
        self._watch = Watch(self.model)
        self._zeros = zero_weights(self.model)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a forward runs, or while the model is made ready."""
        return self._binding.lock

    def refresh(self, *, force: bool = False) -> Change:
        """Take over what changed in the model since it was made ready.

        force: whether anything seems to have changed or not
        """
        with self.lock:
            if self.model.training:
                refuse_unready(self.model)
            if self._watch.restructured:
                refuse_unready(self.model)
                _bind(self.model, self._binding)
                self._make_ready()
                return Change.STRUCTURE
            if force or self._watch.rewritten:
                had_stack, zeros = self.stack is not None, self._zeros
                self.stack = None
                self._pack(calibrate_linears(self.model, self._binding))
                if had_stack:
                    self.stack = find_stack(self.model, self._asked)
                return Change.WEIGHTS if zeros <= self._zeros else Change.STRUCTURE
            return Change.NONE

    @property
    def notes(self) -> list[str]:
        """What was done to the model when it was made ready."""
        return [*self.rewrite.notes, *([] if self.stack is None else [self.stack.note])]

    def keep(self) -> None:
        """Stay as long as the model, which alone holds what was made of it, or until `release`."""
        self._binding.kept = self
        self._finalizer.detach()

    @property
    def kept(self) -> bool:
        """Whether the model itself holds this."""
        return self._binding.kept is self

    def unpack(self) -> None:
        """Give the model its ordinary linears and forwards back; it stays bound."""
        with self.lock:
            self.stack = None
            restore_linears(self.model)
            restore_own_products(self.model)

    def release(self) -> None:
        """Give the model back as it was: its classes, forwards, weights and attributes."""
        with self.lock:
            self.stack = None
            if self._finalizer.detach() is not None:
                self._binding.holders -= 1
            give_back(self.model)
            self._binding.owner, self._binding.kept = no_owner, None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's parameters and of their packed copies."""
        own = sum(int(p.nbytes) for p in self.model.parameters() if not p.is_meta)
        return own + self.rewrite.packed_bytes

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating point type."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def max_positions(self) -> int | None:
        """Context length of the model, None when its config does not say."""
        value = getattr(self.config, "max_position_embeddings", None)
        return None if value is None else int(value)

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, positions: Tensor, cache: Cache, layout: Any, keep: Tensor
    ) -> Tensor:
        """ids, positions [N] -> logits [len(keep), V] of the tokens at flat indices `keep`.

        A rectangle [R, Q] gives logits [R, len(keep), V] of the columns `keep`.
        """
        with self.lock, self._active(layout), _without_autocast(self.device.type):
            stack = self._stack_for(ids, layout)
            if stack is not None:
                return stack.forward(ids, positions, cache, layout, keep)
            return self._by_modules(ids, positions, cache, keep)

    def _stack_for(self, ids: Tensor, layout: Any) -> Stack | None:
        stack = self.stack
        if stack is None or not isinstance(layout, FlatLayout) or not stack.intact:
            return None
        # a single row may have a kernel of its own, which reads the weight that was not packed
        lone = stack.sizes.wide and layout.shapes.lone_row and ids.numel() == 1
        return None if lone else stack

    def _by_modules(self, ids: Tensor, positions: Tensor, cache: Cache, keep: Tensor) -> Tensor:
        inputs = {
            "input_ids": torch.atleast_2d(ids),
            "position_ids": torch.atleast_2d(positions),
            # a 4-D mask goes through every model unchanged; the layout decides who sees what
            "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=ids.device),
            self._cache_name: cache,
            "use_cache": True,
        }
        if self._slices_logits:
            inputs["logits_to_keep"] = keep
        # `model.compile()` puts a compiled call in the place of this one; it knows no such cache
        logits: Tensor = self.model._call_impl(**inputs).logits
        if not self._slices_logits:
            logits = logits[:, keep.to(logits.device)]
        return logits if ids.dim() == 2 else logits[0]

    @contextlib.contextmanager
    def _active(self, layout: Any) -> Iterator[None]:
        self._binding.layout = layout
        try:
            with self._switch:
                yield
        finally:
            self._binding.layout = None

    def _run(self, probe: Probe) -> None:
        """One token through the model: what each layer stores, and whether we are in control."""
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.forward(zero, zero, ProbeCache(probe), probe, zero)

    def _refuse_uncontrolled(self, probe: Probe) -> None:
        name, count = type(self.model).__name__, int(self.config.num_hidden_layers)
        missing = sorted(set(range(count)) - set(probe.layers))
        # the last layers may attend to what layers before them keep
        shared = probe.attended == count and missing == list(range(len(probe.layers), count))
        if missing and not shared:
            raise UnsupportedModelError(f"{name}: layers {missing} keep no keys and values")
        if probe.attended > count:
            raise UnsupportedModelError(
                f"{name}: its {count} layers attend {probe.attended} times in one forward; one "
                "entry per layer and token is kept"
            )
        if probe.attended != count:
            raise UnsupportedModelError(
                f"{name}: {probe.attended} of {count} layers attend through transformers' "
                "attention interface; the others cannot be given their own rows"
            )


def _leave(model: nn.Module, binding: Binding) -> None:
    binding.holders -= 1
    if binding.holders == 0:
        give_back(model)


def give_back(model: nn.Module) -> None:
    """Give a model its own linears, forwards and attributes back, also where binding failed."""
    restore_linears(model)
    restore_own_products(model)
    for module in model.modules():
        vars(module).pop("draftproof", None)


def _shared_parameters(model: nn.Module) -> set[int]:
    """Ids of the parameters that have more than one name: a head tied to the embedding."""
    names = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {key for key, count in names.items() if count > 1}


class Change(IntEnum):
    """What `BoundModel.refresh` found and took over."""

    NONE = 0
    WEIGHTS = 1  # other numbers
    STRUCTURE = 2  # other modules, types or devices, or weights that were all zero


def bound_already(model: nn.Module) -> BoundModel | None:
    """What a model was bound to before, and still is."""
    binding = _binding_of(model)
    owner = None if binding is None else binding.owner()
    return owner if isinstance(owner, BoundModel) and owner.model is model else None


def _own_modules(model: nn.Module) -> list[nn.Module]:
    """Those that attend, or hold experts."""
    return [m for m in model.modules() if "layer_idx" in vars(m) or hasattr(m, "is_transposed")]


def _binding_of(model: nn.Module) -> Binding | None:
    found = (vars(module).get("draftproof") for module in _own_modules(model))
    return next((item for item in found if isinstance(item, Binding)), None)


def _bind(model: nn.Module, binding: Binding | None = None) -> Binding:
    """Give every attention module the model's one Binding (kept when there already is one)."""
    one = binding or _binding_of(model) or Binding()
    for module in _own_modules(model):
        module.draftproof = one  # type: ignore[assignment]
    return one


@contextlib.contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


@contextlib.contextmanager
def same_numerics(bound: BoundModel, shapes: Shapes) -> Iterator[None]:
    """Run transformers' own `model.generate(...)` with this package's kernels and shapes.

    Its attention and linears are then called as an executor with these `shapes` calls them, so
    that outputs can be compared bit for bit. Give `generate` a plain `DynamicCache()` for models
    with a sliding window: a cache that drops old keys moves the others to other slots.
    """
    bound._binding.shapes = shapes
    try:
        with bound._switch, RoundedRows(shapes):
            yield
    finally:
        bound._binding.shapes = None
