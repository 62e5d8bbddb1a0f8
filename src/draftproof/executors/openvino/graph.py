"""Surgery on OpenVINO graphs: paged attention put in, logits for the kept tokens only, weights
stored in the narrowest type that holds them exactly.

A graph is flat: `input_ids` and `position_ids` [N], and for attention `past_lens` [R],
`subsequence_begins` [R + 1], `block_indices`, `block_indices_begins` [R + 1] and
`max_context_len`, all int32, which are OpenVINO's own names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openvino as ov
from openvino import op
from openvino import opset13 as ops

from draftproof.errors import UnsupportedModelError

STAND_IN = "draftproof.attention."
KEEP = "keep"
SMALL = 256  # elements; smaller constants are left as they are

# after the last matrix product a model only scales, caps or reshapes its logits
AFTER_LOGITS = {"Add", "Convert", "Divide", "Gather", "Multiply", "Reshape", "Squeeze", "Tanh"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedLayer:
    """One attention layer; `window` is 0 where every earlier token is seen."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int = 0


def stand_in(layer: PagedLayer, number: int, query: Any, key: Any, value: Any) -> Any:
    """An operation of the right shape where attention belongs, until `page` puts it there.

    Files of OpenVINO cannot hold paged attention itself: what was written cannot be read back.
    query, key, value: [N, heads * dim] -> [N, 1, heads, value_dim]
    """
    width = layer.heads * layer.key_dim + layer.kv_heads * (layer.key_dim + layer.value_dim)
    columns = np.arange(layer.heads * layer.value_dim, dtype=np.int32) % width
    joined = ops.concat([query, key, value], 1)
    node = ops.gather(joined, ops.constant(columns), ops.constant(1, np.int32))
    node.set_friendly_name(f"{STAND_IN}{number}")
    shape = ops.constant([0, 1, layer.heads, layer.value_dim])
    return ops.reshape(node, shape, special_zero=True)


def page(model: Any, layers: Sequence[PagedLayer]) -> None:
    """Replace every stand-in by paged attention, in place; adds the inputs that it needs.

    Raises UnsupportedModelError when the graph has not the layers it should have.
    """
    vector = {name: _parameter(name, [-1]) for name in ("past_lens", "subsequence_begins")}
    vector |= {name: _parameter(name, [-1]) for name in ("block_indices", "block_indices_begins")}
    longest = _parameter("max_context_len", [])
    found = {n.get_friendly_name(): n for n in model.get_ops()}
    caches = []
    for number, layer in enumerate(layers):
        node = found.get(f"{STAND_IN}{number}")
        if node is None:
            raise UnsupportedModelError(f"layer {number}: its attention is not in the graph")
        pair = [_cache(f"{name}_cache.{number}") for name in ("key", "value")]
        caches += pair
        fed = _joined(node)
        attention = _attention(layer, [*fed, *pair, *vector.values()], longest)
        node.output(0).replace(attention.output(0))
    model.add_parameters([*vector.values(), longest, *caches])
    model.validate_nodes_and_infer_types()


def _joined(node: Any) -> list[Any]:
    """Query, key and value of a stand-in."""
    return list(node.input_value(0).get_node().input_values())


def _attention(layer: PagedLayer, inputs: Sequence[Any], longest: Any) -> Any:
    """The operation, with everything that this package does not use switched off."""
    nothing, none = _constant([], np.int32), _constant([], np.float32)
    zero = _constant(0, np.int32)
    node = op._PagedAttentionExtension(
        [
            *(_output(value) for value in inputs),  # query, key, value, caches, where they lie
            _constant(layer.scale, np.float32),
            _constant(layer.window, np.int32),
            none,  # alibi slopes
            longest.output(0),
            nothing,  # score aggregation
            nothing,
            nothing,
            none,  # cache rotation
            none,
            zero,
            zero,  # sparse attention
            none,  # sinks
            zero,
            nothing,
            nothing,
            nothing,  # eviction
            nothing,  # token types
            _constant([], np.uint8),
            nothing,  # query to query bias
        ]
    )
    sizes = node.get_rt_info()
    sizes["num_k_heads"] = sizes["num_v_heads"] = layer.kv_heads
    sizes["k_head_size"], sizes["v_head_size"] = layer.key_dim, layer.value_dim
    return node


def _output(value: Any) -> Any:
    return value.output(0) if isinstance(value, ov.Node) else value


def _constant(value: Any, dtype: Any) -> Any:
    return ops.constant(np.array(value, dtype)).output(0)


def _parameter(name: str, shape: Sequence[int], kind: Any = ov.Type.i32) -> Any:
    node = ops.parameter(list(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def _cache(name: str) -> Any:
    """Keys or values of a layer; the plugin decides on their type and block size."""
    return _parameter(name, [-1, -1, -1, -1], ov.Type.dynamic)


def gather_kept(model: Any) -> None:
    """Compute logits of the tokens at flat indices `keep` only, a new input [K] int64.

    Tokens are the first axis of what the last matrix product reads.
    Raises UnsupportedModelError when the graph does not end in a matrix product.
    """
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        inner = [v.get_node() for v in node.input_values()]
        inner = [n for n in inner if not _is_constant(n)]
        if node.get_type_name() not in AFTER_LOGITS or len(inner) != 1:
            raise UnsupportedModelError(
                f"the logits come from {node.get_type_name()} {node.get_friendly_name()}, not from "
                "a matrix product"
            )
        node = inner[0]
    keep = _parameter(KEEP, [-1], ov.Type.i64)
    kept = ops.gather(node.input_value(0), keep, ops.constant(0, np.int32))
    node.input(0).replace_source_output(kept.output(0))
    model.add_parameters([keep])
    model.validate_nodes_and_infer_types()


def _is_constant(node: Any) -> bool:
    """A constant, perhaps widened from a narrower type."""
    if node.get_type_name() == "Convert":
        return _is_constant(node.input_value(0).get_node())
    return bool(node.get_type_name() == "Constant")


def narrow_constants(model: Any) -> None:
    """Store float32 weights that are bfloat16 or float16 numbers as such; equal ones once.

    Nothing is rounded: a checkpoint in 16 bits takes 16 bits, one in 32 bits stays as it is.
    """
    made: dict[tuple[Any, ...], Any] = {}
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32:
            continue
        values = node.get_data()
        if values.size < SMALL:
            continue
        narrow = _narrowed(values)
        if narrow is None:
            continue
        bits, kind = narrow
        key = (kind, bits.shape, hashlib.sha256(bits.tobytes()).digest())
        if key not in made:
            made[key] = ops.convert(op.Constant(_owned(bits, kind)), "f32")
        node.output(0).replace(made[key].output(0))


def mark_decompressions(file: Path) -> None:
    """Say in a saved graph that 16-bit weights are widened only to be computed with.

    Unmarked, OpenVINO folds them into float32 constants when it compiles: twice their memory.
    There is no call for it in OpenVINO's Python, and a plain entry of `rt_info` is written
    elsewhere.
    """
    tree = ElementTree.parse(file)
    layers = {layer.get("id"): layer for layer in tree.iter("layer")}
    for edge in tree.iter("edge"):
        source, layer = layers[edge.get("from-layer")], layers[edge.get("to-layer")]
        kind = source.find("data")
        if source.get("type") != "Const" or layer.get("type") != "Convert" or kind is None:
            continue
        if kind.get("element_type") in ("bf16", "f16"):
            info = ElementTree.Element("rt_info")
            ElementTree.SubElement(info, "attribute", name="decompression", version="0")
            layer.insert(1, info)  # behind `data`
    tree.write(file, xml_declaration=True, encoding="utf-8")


def _owned(bits: Any, kind: Any) -> Any:
    """A tensor of a 16-bit type with memory of its own: one made of an array would borrow it."""
    tensor = ov.Tensor(kind, ov.Shape(list(bits.shape)))
    tensor.data.view(np.uint16)[...] = bits
    return tensor


def _narrowed(values: Any) -> tuple[Any, Any] | None:
    """The same numbers as bits of a 16-bit type, [..] uint16, and the type."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if not (bits & 0xFFFF).any():
        return (bits >> 16).astype(np.uint16), ov.Type.bf16
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if np.array_equal(half.astype(np.float32), values):
        return half.view(np.uint16), ov.Type.f16
    return None
