"""All that this package uses of PyTorch although it is private or deprecated.

No other file names these things. Each is probed once, by running it on something small; without it
a public way carries on, and one log line says what was lost. `DRAFTPROOF_WITHOUT` names features to
do without although they are there ("all", or names separated by commas): for tests, and to see what
each of them brings (docs/speed.md, "Private operators").
"""

import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.errors import InputError

# TorchScript reads the annotations of `packed_linear`: no `X | None`, and no postponed evaluation
# in this file.

log = logging.getLogger("draftproof")

WITHOUT = "DRAFTPROOF_WITHOUT"
PACKED_FOR = 32  # rows that the packed layout is chosen for: a small batch of blocks of drafts


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that another PyTorch may not have.

    name:   in DRAFTPROOF_WITHOUT
    uses:   what PyTorch calls it
    lost:   what carries on without it, and at what price
    works:  tries it; raises or returns False where it does not do what is expected of it
    """

    name: str
    uses: str
    lost: str
    works: Callable[[], bool]


def has(feature: Feature) -> bool:
    """Whether a feature is there and wanted; the first time that it is not is logged."""
    return _has(feature, feature.name in _unwanted(os.environ.get(WITHOUT, "")))


@functools.cache
def _has(feature: Feature, unwanted: bool) -> bool:
    reason = f"{WITHOUT} says so" if unwanted else _failure(feature)
    if reason:
        log.warning("without %s (%s): %s", feature.uses, reason, feature.lost)
    return not reason


def _failure(feature: Feature) -> str:
    """Why a feature cannot be used; empty: it can."""
    try:
        return "" if feature.works() else "it does not do what is expected of it"
    except Exception as error:  # whatever a release of PyTorch raises for what it lacks
        lines = str(error).splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


@functools.cache
def _unwanted(value: str) -> frozenset[str]:
    """The features that a value of DRAFTPROOF_WITHOUT names.

    Raises InputError for one that there is not.
    """
    known = [feature.name for feature in FEATURES]
    names = frozenset(filter(None, (name.strip() for name in value.split(","))))
    unknown = sorted(names - {*known, "all"})
    if unknown:
        raise InputError(
            f"{WITHOUT} names {', '.join(unknown)}; choose all, or some of {', '.join(known)}"
        )
    return frozenset(known) if "all" in names else names


def missing(features: Iterable[Feature] | None = None) -> list[str]:
    """Names of the features that are not used, of these or of all."""
    return [f.name for f in (FEATURES if features is None else features) if not has(f)]


# -- matrix products with packed weights


def pack(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's own layout, opaque; as it is where there is none."""
    return _reorder(weight) if has(PACKED_LINEAR) else weight


def multiply_packed(rows: Tensor, packed: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """[M, in] -> [M, out] with a weight from `pack`."""
    if packed.is_mkldnn:
        return packed_linear(rows, packed, bias)
    return functional.linear(rows, packed, bias)


def packed_linear(rows: Tensor, packed: Tensor, bias: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """[M, in] -> [M, out] with a packed weight; a function that TorchScript takes."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return out


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
    return packed


def _packs() -> bool:
    """Packed, a product is the same up to rounding, and the weight comes back bit for bit."""
    if not torch.backends.mkldnn.is_available():
        raise RuntimeError("this build of PyTorch has no oneDNN")
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(n, 24, generator=generator, dtype=torch.float32) for n in (5, 7))
    bias = torch.randn(7, generator=generator, dtype=torch.float32)
    packed = _reorder(weight)
    if not (packed.is_mkldnn and torch.equal(packed.to_dense(), weight)):
        return False
    expected = functional.linear(rows, weight, bias)
    return torch.allclose(packed_linear(rows, packed, bias), expected, rtol=1e-4, atol=1e-4)


# -- what the processor can do


def lacks_kernel(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this CPU has no matrix kernel for a 16-bit type, so that torch multiplies row by row.

    Without AVX-512 or AMX, a bfloat16 linear takes as long for M rows as M linears of one row:
    scoring K + 1 tokens at once would gain nothing.
    """
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return not (has(SHORT_KERNELS) and _supports(dtype))


def _supports(dtype: torch.dtype) -> bool:
    ops = torch.ops.mkldnn
    if dtype is torch.bfloat16:
        return bool(ops._is_mkldnn_bf16_supported())
    return bool(ops._is_mkldnn_fp16_supported())


def _says_what_it_supports() -> bool:
    return all(isinstance(_supports(dtype), bool) for dtype in (torch.bfloat16, torch.float16))


def has_tiles() -> bool:
    """Whether this CPU multiplies in tiles (AMX)."""
    return has(TILES) and bool(torch.cpu._is_amx_tile_supported())


# -- functions without Python between their kernels


def script(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function of tensors run by TorchScript's interpreter; None where that cannot be had."""
    return _script(function) if has(SCRIPT) else None


@functools.cache
def _script(function: Callable[..., Any]) -> Callable[..., Any] | None:
    try:
        return _compile(function)
    except Exception as error:  # whatever it is, the Python is there
        lines = str(error).strip().splitlines() or ["no message"]
        log.warning("%s is not taken by %s: %s", function.__name__, SCRIPT.uses, lines[0])
        return None


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated as a way to export models
        compiled: Callable[..., Any] = torch.jit.script(function)
    return compiled


def _doubled(given: Tensor) -> Tensor:
    return 2 * given


def _scripts() -> bool:
    return torch.equal(_compile(_doubled)(torch.ones(2)), torch.full((2,), 2.0))


def _traces() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated as well
        traced: Callable[..., Any] = torch.jit.trace(_doubled, torch.ones(3))
    return torch.equal(traced(torch.ones(2)), torch.full((2,), 2.0))


PACKED_LINEAR = Feature(
    "packed-linear",
    "torch.ops.mkldnn._linear_pointwise and _reorder_linear_weight",
    "linears run as torch.nn.functional.linear and layers as modules; few rows are slower, and "
    "numerics='exact' is refused where that function's rows depend on one another",
    _packs,
)
SHORT_KERNELS = Feature(
    "short-kernels",
    "torch.ops.mkldnn._is_mkldnn_bf16_supported and _is_mkldnn_fp16_supported",
    "16-bit linears multiply in float32, which takes twice the memory, and up to twice the time "
    "where this CPU has 16-bit kernels",
    _says_what_it_supports,
)
TILES = Feature(
    "tiles",
    "torch.cpu._is_amx_tile_supported",
    "where this CPU has AMX, the exact tier may choose row counts that are not the fastest",
    lambda: isinstance(torch.cpu._is_amx_tile_supported(), bool),
)
SCRIPT = Feature(
    "script",
    "torch.jit.script",
    "decoder layers run as Python; a round of few rows is slower, its bits are the same",
    _scripts,
)
TRACE = Feature(
    "trace",
    "torch.jit.trace",
    "models are converted for OpenVINO with torch.export, which takes longer",
    _traces,
)
ARITHMETIC = (PACKED_LINEAR, SHORT_KERNELS, TILES)  # what is measured depends on these
FEATURES = (*ARITHMETIC, SCRIPT, TRACE)
