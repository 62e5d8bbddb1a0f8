"""Weights of a draft in 8 bits: half as much to read per token.

What a draft guesses never changes the output; rounding costs acceptance at most. It is symmetric,
to the nearest, with a scale per output channel (https://arxiv.org/abs/2208.07339, section 2), in
the pattern that OpenVINO's plugin keeps in 8 bits and multiplies with as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import op
from openvino import opset13 as ops

LARGEST = 127
ROWS = 4096  # widened to float32 at a time
GROUP = 64  # inputs that share a scale where the plugin rounds activations for integer products
FLOATS = ("bf16", "f16", "f32")


def round_weights(model: Any) -> int:
    """Round the matrices that products read, in place; returns how many.

    A matrix that is also an embedding stays one: both read the rounded one. Vectors, and what has
    8 bits already, stay as they are.
    """
    count = 0
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        source = node.input_value(1)
        weight = _weight(source.get_node())
        if weight is None:
            continue
        inputs = 1 if node.get_attributes()["transpose_b"] else 0
        codes, scales = _rounded(weight, inputs)
        source.replace(ops.multiply(ops.convert(op.Constant(codes), "f32"), scales).output(0))
        count += 1
    return count


def _weight(node: Any) -> Any | None:
    """The constant behind an input, perhaps widened there, if it is a matrix of floats."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or len(node.get_output_shape(0)) != 2:
        return None
    return node if node.get_element_type().get_type_name() in FLOATS else None


def _rounded(weight: Any, inputs: int) -> tuple[Any, Any]:
    """Codes, an int8 tensor of the same shape, and scales, a float32 constant that broadcasts.

    inputs: the axis along which a product sums
    """
    rows, columns = weight.get_output_shape(0)
    codes = ov.Tensor(ov.Type.i8, ov.Shape([rows, columns]))
    step = ROWS if inputs == 1 else rows
    scales = []
    for start in range(0, rows, step):
        values = _widened(weight, slice(start, start + step))
        scale = np.abs(values).max(axis=inputs, keepdims=True) / LARGEST
        scale[scale == 0] = 1
        codes.data[start : start + step] = np.rint(values / scale)
        scales.append(scale)
    return codes, ops.constant(np.concatenate(scales), np.float32)


def _widened(weight: Any, rows: slice) -> Any:
    """Some rows of a constant as float32."""
    values = weight.get_tensor_view().data
    if weight.get_element_type() == ov.Type.bf16:  # numpy has no such type
        bits = values.view(np.uint16).reshape(weight.get_output_shape(0))[rows]
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return values[rows].astype(np.float32)
