"""The only way from a command to the models; tests put a scripted pair here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.cli.options import ModelOptions
from draftproof.errors import DraftproofError, InputError

if TYPE_CHECKING:
    from draftproof.api import Pair
    from draftproof.hf import BoundModel


# Raised while loading, these are more likely a fault of the code than of what the user named.
BUGS = (TypeError, AttributeError, NameError, LookupError)


def open_pair(options: ModelOptions) -> Pair:
    """Load target and draft. This is where torch is first imported.

    Raises InputError for the many things that transformers, torch and safetensors raise when a
    name, a file or a device is wrong.
    """
    with _loading(options.models, options.device, is_local=options.is_local):
        return _load(options)


def open_target(name: str, dtype: str, device: str) -> BoundModel:
    """Load one model by itself, ready for an executor. Raises as `open_pair` does."""
    with _loading([name], device, is_local=Path(name).is_dir()):
        from draftproof.hf import BoundModel, load_model

        return BoundModel(load_model(name, dtype=dtype, device=device, model_kwargs={}))


@contextlib.contextmanager
def _loading(names: list[str], device: str, *, is_local: bool) -> Iterator[None]:
    _refuse_missing_folders(names)
    try:
        if is_local:  # bars are for downloads; weights on disk load in a moment
            _hide_progress_bars()
        yield
    except (DraftproofError, *BUGS):
        raise
    except Exception as error:
        named = " and ".join(names)
        raise InputError(f"cannot load {named} on {device}: {error}") from error


def _hide_progress_bars() -> None:
    from draftproof.hf import hide_progress_bars

    hide_progress_bars()


def _refuse_missing_folders(names: list[str]) -> None:
    """Without this the hub is asked for a model of that name, and complains about the name."""
    for name in names:
        if name.startswith((".", "/", "~", os.sep)) and not Path(name).is_dir():
            raise InputError(f"no such folder: {name}")


def _load(options: ModelOptions) -> Pair:
    import draftproof

    return draftproof.load(
        options.target,
        "ngram" if options.ngram else options.draft,
        dtype=options.dtype,
        device=options.device,
        numerics=options.numerics,
        method=options.method,
        method_options=None if options.method_options is None else dict(options.method_options),
        executor=options.executor,
        draft_executor=options.draft_executor,
        executor_options=None
        if options.executor_options is None
        else dict(options.executor_options),
        prompt_lookup_max=options.prompt_lookup_max,
        prompt_lookup_min=options.prompt_lookup_min,
    )
