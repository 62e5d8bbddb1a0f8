"""When two tokens are so close that the order of a sum may decide between them."""

from __future__ import annotations

import math

MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}  # bits of the fraction
STEPS = 2.0  # a gap of so many steps of the format is near on any machine
# A batch of another shape moves both tokens' logits by some steps each, through all layers: gaps up
# to half a nat were seen between correct kernels in bfloat16. Beyond 2 nats no difference is noise.
SEEN = {"bfloat16": 0.5, "float16": 0.0625}  # eight times finer, so are its differences
MOST = 2.0


def step_of(dtype: str, magnitude: float) -> float:
    """The distance of neighbouring numbers of a format at a magnitude; 0 for unknown formats."""
    bits = MANTISSA.get(dtype)
    if bits is None or magnitude <= 0 or not math.isfinite(magnitude):
        return 0.0
    return 2.0 ** (math.floor(math.log2(magnitude)) - bits)


def band_of(dtype: str, magnitude: float) -> float:
    """The largest gap, in logits, that rounding in fast numerics of a 16-bit format explains.

    0 for float32 and float64: there the tokens are equal whatever the shape.
    """
    if dtype not in SEEN:
        return 0.0
    return min(MOST, max(SEEN[dtype], STEPS * step_of(dtype, magnitude)))
