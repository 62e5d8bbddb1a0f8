"""Logits processors and stopping criteria that a caller gives: one row each, or refused by name."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftproof.errors import UnsupportedArgumentError
from draftproof.sampling import Settings

# They run the model themselves, or need inputs that a decoder-only row does not have.
NOT_PER_POSITION = {
    "AlternatingCodebooksLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperTimeStampLogitsProcessor",
}


@dataclass(slots=True)
class OwnCopy:
    """A copy of a processor or criterion for one row, made when the row first calls it."""

    original: Callable[..., Any]
    copy: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return type(self.original).__name__

    def __call__(self, *args: Any) -> Any:
        if self.copy is None:
            self.copy = copy.deepcopy(self.original)
        return self.copy(*args)


def own_callables(settings: Sequence[Settings]) -> list[Settings]:
    """Give each row its own copy of every callable that several rows share.

    Rows advance at different speeds, so that state cannot be kept for a whole batch. An object that
    only one row uses is used itself. Raises UnsupportedArgumentError, naming the callable.
    """
    parts = [(*s.logits_processor, *s.stopping_criteria) for s in settings]
    uses = Counter(id(_inner(item)) for part in parts for item in part)
    shared = {key for key, count in uses.items() if count > 1}
    for item in {id(item): item for part in parts for item in part}.values():
        _refuse_uncallable(item, shared=id(_inner(item)) in shared)

    def own(items: Sequence[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
        copied = (id(_inner(item)) in shared and _keeps_state(item) for item in items)
        return tuple(
            OwnCopy(item) if copy_it else item for item, copy_it in zip(items, copied, strict=True)
        )

    return [
        replace(
            s,
            logits_processor=own(s.logits_processor),
            stopping_criteria=own(s.stopping_criteria),
        )
        if s.logits_processor or s.stopping_criteria
        else s
        for s in settings
    ]


def _inner(item: Any) -> Any:
    """What a door may have wrapped for one row (see `dropin.processors`)."""
    return getattr(item, "inner", item)


def _refuse_uncallable(item: Callable[..., Any], *, shared: bool) -> None:
    name = type(_inner(item)).__name__
    if name in NOT_PER_POSITION or _required_arguments(_inner(item)) > 2:
        raise UnsupportedArgumentError(
            f"{name} cannot be evaluated per position: it needs more than a row's ids and scores"
        )
    if shared and _keeps_state(item):
        try:
            copy.deepcopy(item)
        except Exception as error:
            raise UnsupportedArgumentError(
                f"{name} is shared by several rows and cannot be copied ({error}); "
                "give a list with one per prompt"
            ) from error


def _keeps_state(item: Callable[..., Any]) -> bool:
    """transformers' own classes keep none, but for one of its watermarks."""
    kind = type(_inner(item))
    own = kind.__module__.startswith("transformers.")
    return not own or kind.__name__ == "SynthIDTextWatermarkLogitsProcessor"


def _required_arguments(item: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):  # some built-in callables tell nothing
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in kinds for p in parameters)


def bound(processor: Any, origin: int) -> Callable[..., Any]:
    """transformers' prefix constraint asks for the row's number: tell the true one."""
    if type(processor).__name__ != "PrefixConstrainedLogitsProcessor":
        return processor  # type: ignore[no-any-return]
    allowed = processor._prefix_allowed_tokens_fn
    own: Callable[..., Any] = type(processor)(lambda _, ids: allowed(origin, ids), 1)
    return own
