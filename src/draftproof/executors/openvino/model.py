"""What the loop is given: a model that OpenVINO runs, and the memory that goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import openvino as ov
from torch import nn

from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.executors.base import Executor
from draftproof.executors.openvino.calibration import calibrate
from draftproof.executors.openvino.card import Card
from draftproof.executors.openvino.compiled import (
    CACHE_PRECISIONS,
    PRECISIONS,
    WEIGHTS,
    PagedGraph,
    Settings,
)
from draftproof.executors.openvino.conversion import converted, is_export
from draftproof.executors.openvino.executor import PagedExecutor
from draftproof.numerics.shapes import Shapes
from draftproof.numerics.store import Verdict

# what the plugin calls that it can compute in a type
CAPABILITIES = {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}


class PagedModel(PagedGraph):
    """A `ForeignModel` on OpenVINO's paged attention."""

    @classmethod
    def open(
        cls,
        source: str | Path | nn.Module,
        settings: Settings,
        model_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """From a folder, a hub id, a loaded model, or a folder that optimum exported.

        Raises UnsupportedModelError, UnsupportedArgumentError or InputError.
        """
        _refuse(settings)
        if not isinstance(source, nn.Module) and is_export(Path(source)):
            folder = Path(source)
            card = _card_of_export(folder)
        else:
            folder = converted(source, model_kwargs)
            card = Card.read(folder)
        model = cls(folder=folder, card=card, settings=settings)
        _refuse_incapable(model.dtype_name)
        return model

    @property
    def runtime(self) -> str:
        """Name of what runs it, as in `executor=`."""
        return "openvino"

    def calibrate(self) -> Verdict:
        """The shapes under which rows are independent, from disk when they were found before."""
        return calibrate(self)

    def executor(self, rows: int, capacity: int, free: int | None, shapes: Shapes) -> Executor:
        """A memory for `rows` rows. Raises OutOfMemoryError when it needs more than `free`."""
        return PagedExecutor(model=self, rows=rows, capacity=capacity, free=free, shapes=shapes)


def _refuse(settings: Settings) -> None:
    choices = {"dtype": PRECISIONS, "kv_cache_dtype": CACHE_PRECISIONS, "weights": WEIGHTS}
    for name, allowed in choices.items():
        value = getattr(settings, name)
        if value not in ("auto", *allowed):
            raise UnsupportedArgumentError(
                f"{name}={value!r} with executor='openvino'; choose one of "
                + ", ".join(dict.fromkeys(["auto", *allowed]))
            )
    threads = settings.num_threads
    if threads is not None and threads < 1:
        raise InputError(f"num_threads must be 1 or more, got {threads}")


def _refuse_incapable(dtype: str) -> None:
    """OpenVINO takes a type that the processor lacks as a hint, and computes in another one."""
    if CAPABILITIES[dtype] not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise UnsupportedArgumentError(
            f"dtype={dtype!r} with executor='openvino': this processor does not compute in it; use "
            "dtype='float32'"
        )


def _card_of_export(folder: Path) -> Card:
    try:
        return Card.of_export(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: a graph without a config.json that says enough") from error
