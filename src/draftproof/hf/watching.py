"""Whether a model is still the one that was made ready: its modules, and every weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 16  # numbers of each weight that are compared where nothing else would show a write


@dataclass(frozen=True, slots=True)
class _Weight:
    """One parameter or buffer: who holds it, under which name, and what was seen of it."""

    holder: dict[str, Any]
    name: str
    tensor: Tensor
    address: int
    dtype: torch.dtype
    version: int | None  # of inference tensors: none


@dataclass(frozen=True, slots=True)
class _Child:
    """One module: who holds it, and under which name."""

    holder: dict[str, Any]
    name: str
    module: nn.Module


class Watch:
    """Notices what changed in a model since the watch was made.

    Of every parameter and buffer: another tensor in its place, another address, type or device, and
    PyTorch's own count of writes. Writes through `.data` and to tensors made in inference mode are
    not counted: of those, a few numbers all over each weight are compared. A write that spares all
    of them is missed; `Pair.refresh` takes the weights over in any case.
    """

    def __init__(self, model: nn.Module) -> None:
        self._children = [
            _Child(module._modules, name, child)
            for module in model.modules()
            for name, child in module._modules.items()
            if child is not None
        ]
        self._counts = [(module._modules, len(module._modules)) for module in model.modules()]
        self._weights = [
            _Weight(holder, name, t, _address(t), t.dtype, _version(t))
            for holder, name, t in _tensors(model.modules())
        ]
        self._views = [_spread(weight.tensor) for weight in self._weights]
        self._seen = self._sample()

    @property
    def restructured(self) -> bool:
        """A module was added, removed, replaced or compiled, or a weight changed type or device."""
        return (
            any(child.module._compiled_call_impl is not None for child in self._children)
            or any(child.holder.get(child.name) is not child.module for child in self._children)
            or any(len(holder) != count for holder, count in self._counts)
            or any(_moved(weight) for weight in self._weights)
        )

    @property
    def rewritten(self) -> bool:
        """The numbers of a weight changed, or another tensor took its place."""
        return any(_touched(weight) for weight in self._weights) or any(
            not torch.equal(now, then) for now, then in zip(self._sample(), self._seen, strict=True)
        )

    def _sample(self) -> list[Tensor]:
        """Some numbers of every weight, one tensor per type and device."""
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for view in self._views:
            groups.setdefault((view.dtype, view.device), []).append(view)
        with torch.no_grad():
            return [_bits(torch.cat(views)) for views in groups.values()]


def _tensors(modules: Iterable[nn.Module]) -> Iterable[tuple[dict[str, Any], str, Tensor]]:
    for module in modules:
        for holder in (module._parameters, module._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield holder, name, tensor


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if _is_plain(tensor) else 0


def _is_plain(tensor: Tensor) -> bool:
    """Not a quantiser's own kind of tensor, which may have no memory of its own."""
    return type(tensor) in (Tensor, nn.Parameter, nn.Buffer)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _moved(weight: _Weight) -> bool:
    now = weight.holder.get(weight.name)
    return now is None or now.dtype != weight.dtype or now.device != weight.tensor.device


def _touched(weight: _Weight) -> bool:
    now = weight.holder.get(weight.name)
    return (
        now is not weight.tensor
        or _address(now) != weight.address
        or _version(now) != weight.version
    )


def _spread(tensor: Tensor) -> Tensor:
    """A view of numbers spread over a whole weight, [<= SAMPLES]."""
    detached = tensor.detach()
    if not _is_plain(tensor) or detached.is_meta or detached.numel() == 0:
        return torch.zeros(0, dtype=torch.int8)
    if detached.layout != torch.strided or not detached.is_contiguous():
        return detached.flatten()[:0]
    count = min(SAMPLES, detached.numel())
    stride = max(1, (detached.numel() - 1) // max(1, count - 1))
    return detached.as_strided((count,), (stride,), detached.storage_offset())


def _bits(numbers: Tensor) -> Tensor:
    """The same as integers, so that NaN equals itself."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = numbers.dtype.itemsize
    return numbers if size not in sizes or numbers.is_complex() else numbers.view(sizes[size])
