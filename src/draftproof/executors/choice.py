"""Which executor runs a model, by name."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draftproof.errors import (
    DraftproofError,
    InputError,
    UnsupportedArgumentError,
    UnsupportedModelError,
)
from draftproof.executors.base import ForeignModel
from draftproof.executors.confirm import confirm_stack
from draftproof.executors.proof import prove
from draftproof.hf import (
    BoundModel,
    Change,
    bound_already,
    default_eos,
    load_model,
    unapplied_defaults,
)
from draftproof.hf.bound import give_back
from draftproof.hf.capability import unwrapped
from draftproof.hf.identity import fingerprint

log = logging.getLogger("draftproof")

EXECUTORS = ("torch", "openvino")
DRAFT = "draft_"  # before an option that is of the draft alone


def load_part(
    name: str,
    executor: str,
    *,
    dtype: str,
    device: str,
    model_kwargs: dict[str, Any],
    options: dict[str, Any] | None = None,
    lone_row: bool = True,
    script_layers: bool = True,
    drafts: bool = False,
) -> BoundModel | ForeignModel:
    """A model of its own, ready for its executor.

    options:  of openvino: kv_cache_dtype, num_threads, and either with draft_ in front, as well as
              draft_weights, for a model that `drafts`
    lone_row: see `BoundModel`
    script_layers: whether layers that are known run as one function
    Raises UnsupportedArgumentError for an option that there is not.
    """
    if executor == "torch":
        model = load_model(name, dtype=dtype, device=device, model_kwargs=model_kwargs)
        return _bound(model, owned=True, lone_row=lone_row, script_layers=script_layers)
    if device != "cpu":
        raise UnsupportedArgumentError(
            f"device={device!r} with executor='openvino', which runs on CPUs; use executor='torch'"
        )
    return _open(name, {"dtype": dtype, **_meant(options, drafts)}, model_kwargs)


def bind_part(
    model: Any, executor: str, options: dict[str, Any] | None = None, drafts: bool = False
) -> BoundModel | ForeignModel:
    """A loaded model made ready for its executor; one that is ready already stays as it is."""
    if isinstance(model, BoundModel) and model.proven is None:
        model.proven = prove(model)
    if isinstance(model, (BoundModel, ForeignModel)):
        return model
    if executor == "torch":
        return _bound(model)
    return _open(model, _meant(options, drafts), {})


def _meant(options: dict[str, Any] | None, drafts: bool) -> dict[str, Any]:
    """The options of one of the two models; one with draft_ in front goes before one without."""
    given = options or {}
    if "weights" in given:
        raise UnsupportedArgumentError(
            "executor option weights: rounded weights are another model, whose output is another; "
            "draft_weights rounds those of the draft, which never change it"
        )
    common = {name: value for name, value in given.items() if not name.startswith(DRAFT)}
    own = {name.removeprefix(DRAFT): value for name, value in given.items() if name not in common}
    return common | own if drafts else common


def _bound(
    given: Any, *, owned: bool = False, lone_row: bool = True, script_layers: bool = True
) -> BoundModel:
    """A transformers model made ready, and compared with its own `generate`.

    One that was made ready before, and not given back since, is brought up to date and shared.
    """
    inner = unwrapped(given)
    known = bound_already(inner)
    if known is not None:
        refresh(known)
        if known.proven is None or known.proven.judge is not given:
            known.proven = prove(known, given)
        return known
    weights = fingerprint(inner)  # packing may drop some
    try:
        model = BoundModel(inner, owned=owned, lone_row=lone_row, runs_stack=script_layers)
        confirm_stack(model)
        model.proven = prove(model, given, weights=weights)
    except Exception as error:
        give_back(inner)
        if isinstance(error, (DraftproofError, MemoryError, torch.OutOfMemoryError)):
            raise
        raise UnsupportedModelError(
            f"{type(inner).__name__}: its forward fails when it is given positions and a cache of "
            f"rows: {type(error).__name__}: {error}"
        ) from error
    return model


def bind_and_keep(model: Any) -> BoundModel:
    """A loaded model made ready once, for all calls to come: kept as long as the model."""
    bound = _bound(model)
    bound.keep()
    return bound


def release(model: Any) -> None:
    """Give a model back as it was, whoever had made it ready; see `BoundModel.release`."""
    bound = bound_already(unwrapped(model))
    if bound is not None:
        bound.release()


def refresh(part: BoundModel | ForeignModel, *, force: bool = False) -> Change:
    """Take over what changed in a model since it was made ready; see `BoundModel.refresh`.

    Raises UnsupportedModelError when its rows are no longer those of its own `generate`.
    """
    if isinstance(part, ForeignModel):
        return Change.NONE
    with part.lock:
        change = part.refresh(force=force)
        if change is Change.STRUCTURE:
            confirm_stack(part)
            if part.proven is not None:
                part.proven = prove(part, part.proven.judge, fresh=True)
    return change


def runtime_of(part: object) -> str:
    """Name of the runtime that a target or a draft runs on."""
    return part.runtime if isinstance(part, ForeignModel) else "torch"


def provenance(part: BoundModel | ForeignModel) -> dict[str, Any]:
    """What was done to a model when it was made ready, and what it was compared with."""
    if isinstance(part, ForeignModel):
        return {"rewrites": [], "proven": None, "defaults_not_applied": {}}
    return {
        "rewrites": part.notes,
        "proven": part.proven.proof.describe(),
        "defaults_not_applied": unapplied_defaults(part.model),
    }


def warn_of_defaults(part: BoundModel | ForeignModel) -> None:
    """Say once which of a checkpoint's own settings calls do not follow."""
    ignored = {} if isinstance(part, ForeignModel) else unapplied_defaults(part.model)
    if ignored:
        words = ", ".join(f"{name}={value!r}" for name, value in ignored.items())
        log.warning(
            "the checkpoint's generation_config.json says %s: not applied, as a call says what it "
            "wants; give them as options to have them",
            words,
        )


def eos_of(part: BoundModel | ForeignModel) -> int | Sequence[int] | None:
    """The eos id or ids that a model stops at by default."""
    return part.eos if isinstance(part, ForeignModel) else default_eos(part.model)


def choose(
    executor: str, draft_executor: str | None, options: dict[str, Any] | None, *, drafts: bool
) -> tuple[str, str]:
    """The executors of target and draft.

    drafts:  whether there is a draft model
    Raises UnsupportedArgumentError for names that there are not, and for what nobody would read.
    """
    if draft_executor is not None and not drafts:
        raise UnsupportedArgumentError("draft_executor without a draft model")
    chosen = executor, draft_executor or executor
    for name in chosen:
        if name not in EXECUTORS:
            raise UnsupportedArgumentError(
                f"executor={name!r}; choose one of {', '.join(EXECUTORS)}"
            )
    if options and "openvino" not in chosen:
        raise UnsupportedArgumentError("executor_options without executor='openvino'")
    drafting = [name for name in options or () if name.startswith(DRAFT)]
    if drafting and not (drafts and chosen[1] == "openvino"):
        raise UnsupportedArgumentError(
            f"executor option {', '.join(drafting)} without a draft model on openvino"
        )
    return chosen


def _open(
    source: str | Path | Any, options: dict[str, Any], model_kwargs: dict[str, Any]
) -> ForeignModel:
    if importlib.util.find_spec("openvino") is None:
        raise InputError("executor='openvino' needs OpenVINO: pip install 'draftproof[openvino]'")
    from draftproof.executors.openvino.compiled import Settings
    from draftproof.executors.openvino.model import PagedModel

    known = Settings.__dataclass_fields__
    unknown = sorted(options.keys() - known)
    if unknown:
        names = [name if name != "weights" else f"{DRAFT}{name}" for name in known]
        raise UnsupportedArgumentError(
            f"unknown executor option {', '.join(unknown)}; there are {', '.join(names)}"
        )
    return PagedModel.open(source, Settings(**options), model_kwargs)
