"""Where two runs of one model differ by more than rounding."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from draftproof.hf.listening import Call, Heard, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What rounding may explain.

    tolerance: relative error of an output vector
    flips:     share of the tokens whose error may be larger, a single one at least; None: none,
               in types so exact that no router comes to choose another expert
    """

    tolerance: float
    flips: float | None = None

    def allows(self, errors: list[float]) -> bool:
        """Whether these errors, of the tokens of one kind, may be rounding."""
        beyond = sum(not error <= self.tolerance for error in errors)  # NaN is beyond
        most = 0 if self.flips is None else max(1, int(self.flips * len(errors)))
        return beyond <= most


@dataclass(frozen=True, slots=True)
class Difference:
    """The first module call that differs, and the token at which it does so most."""

    call: Call
    place: Place
    error: float


def first_difference(
    theirs: Heard,
    ours: Heard,
    judged: Collection[str],
    rounding: Rounding,
    kind: Callable[[Place], object],
) -> Difference | None:
    """The first call beyond rounding, if any of the `judged` modules is; None: all agree.

    kind: tokens of one kind are counted together

    Modules that are not judged may arrange their outputs otherwise in another forward. They serve
    to find the place where a difference begins.
    """
    differing = [
        difference
        for call in theirs.calls
        if (difference := _difference(call, theirs, ours, rounding, kind)) is not None
    ]
    if not any(difference.call[0] in judged for difference in differing):
        return None
    return differing[0]


def _difference(
    call: Call, theirs: Heard, ours: Heard, rounding: Rounding, kind: Callable[[Place], object]
) -> Difference | None:
    errors = _errors(theirs.calls[call], ours.calls.get(call, {}))
    kinds: dict[object, list[float]] = {}
    for place, error in errors.items():
        kinds.setdefault(kind(place), []).append(error)
    if all(rounding.allows(values) for values in kinds.values()):
        return None
    worst = max(errors, key=lambda place: errors[place])
    return Difference(call, worst, errors[worst])


def _errors(theirs: dict[Place, Tensor], ours: dict[Place, Tensor]) -> dict[Place, float]:
    """Length of the difference as a share of the vector's, for every token of both runs.

    A vector shorter than usual in its module counts as one of usual length.
    """
    common = [p for p, t in theirs.items() if p in ours and ours[p].shape == t.shape]
    if not common:
        return {}
    expected = torch.stack([theirs[place] for place in common])  # [N, D]
    found = torch.stack([ours[place] for place in common])
    lengths = expected.norm(dim=1)
    usual = torch.maximum(lengths, lengths.nanmedian()).clamp(min=1e-30)
    errors = (expected - found).norm(dim=1) / usual
    return dict(zip(common, errors.tolist(), strict=True))
