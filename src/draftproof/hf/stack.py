"""Models of the Llama kind whose decoder layers can run as one function, without their modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from draftproof.hf.caches import SlotCache
from draftproof.hf.capability import text_config
from draftproof.numerics.attention import AttentionShape
from draftproof.numerics.linear import CalibratedLinear, Product, usual_rule
from draftproof.numerics.shapes import Shapes
from draftproof.numerics.stack import FlatRows, LayerSizes, LayerTensors, run_layers, scripted

# What their layers compute was read in transformers' source, and is compared bit for bit when a
# model is made ready. Others look alike but scale a residual or leave the rotation out somewhere.
KNOWN = ("llama", "mistral", "qwen2", "qwen3")


@runtime_checkable
class FlatLayout(Protocol):
    """A layout that can say where the tokens of a forward sit without being called."""

    @property
    def shapes(self) -> Shapes:
        """Rounding rules of this forward."""

    def flat(self, kinds: Sequence[AttentionShape], group: int, dtype: torch.dtype) -> FlatRows:
        """Places, and masks for every kind of layer; `group` query heads share a key head."""


@dataclass(kw_only=True)
class Stack:
    """The decoder of one model, taken apart.

    kinds:    what layers ask of attention; they differ in the window only
    products: the four of a layer; those of all layers are alike
    parts:    the modules that are not called: who holds each, under which name
    """

    model: Any
    tensors: LayerTensors
    sizes: LayerSizes
    kinds: list[AttentionShape]
    products: list[Product]
    parts: list[tuple[dict[str, Any], str, Any]]

    @property
    def intact(self) -> bool:
        """Nobody has hooked into a module that would not be called, changed it, or replaced it."""
        return not any(
            module._forward_hooks
            or module._forward_pre_hooks
            or "forward" in module.__dict__
            or holder.get(name) is not module
            for holder, name, module in self.parts
        )

    def forward(
        self, ids: Tensor, positions: Tensor, cache: SlotCache, layout: FlatLayout, keep: Tensor
    ) -> Tensor:
        """As `BoundModel.forward`."""
        decoder, shape = self.model.model, ids.shape
        hidden = decoder.embed_tokens(ids.flatten())  # [N, hidden]
        cos, sin = decoder.rotary_emb(hidden, position_ids=positions.flatten()[None])
        group = self.sizes.heads // self.sizes.kv_heads
        hidden = run_layers(
            hidden,
            (cos[0], sin[0]),
            self.tensors,
            self.sizes,
            (cache.keys, cache.values),
            layout.flat(self.kinds, group, hidden.dtype),
            [list(usual_rule(product, layout.shapes).sizes) for product in self.products],
        )
        last = decoder.norm(hidden).view(*shape, -1)
        logits: Tensor = self.model.lm_head(last[..., keep, :])
        return logits

    @property
    def note(self) -> str:
        """What was done, for reports."""
        how = "TorchScript" if scripted() else "Python: there is no TorchScript here"
        return f"{len(self.tensors.weights)} decoder layers run as one function ({how})"


def find_stack(model: Any, asked: Sequence[AttentionShape]) -> Stack | None:
    """The decoder of a model whose layers are known; None: it runs as modules.

    asked: what each layer asked of attention when the model last ran
    """
    decoder: Any = getattr(model, "model", None)
    layers = list(getattr(decoder, "layers", ()))
    if not layers or not _known(model, layers) or len(asked) != len(layers):
        return None
    products = [_products_of(layer) for layer in layers]
    if not _alike(products) or not all(_plain(shape, asked[0]) for shape in asked):
        return None
    config = text_config(model)
    kinds = list(dict.fromkeys(asked))
    sizes = LayerSizes(
        heads=int(config.num_attention_heads),
        kv_heads=int(config.num_key_value_heads),
        eps=float(config.rms_norm_eps),
        scaling=asked[0].scaling,
        wide=cast(Product, products[0][0]).wide,
    )
    ready = cast(list[list[Product]], products)
    tensors = LayerTensors(
        weights=[_weights(*pair) for pair in zip(layers, ready, strict=True)],
        biases=[[product.bias for product in four] for four in ready],
        per_head=[_per_head(layer.self_attn, sizes) for layer in layers if _has_norms(layer)],
        kinds=[kinds.index(shape) for shape in asked],
    )
    return Stack(
        model=model,
        tensors=tensors,
        sizes=sizes,
        kinds=kinds,
        products=ready[0],
        parts=list(_parts(decoder)),
    )


def _known(model: Any, layers: Sequence[nn.Module]) -> bool:
    """Exactly transformers' own classes, and nothing but plain CPU tensors in them."""
    config = text_config(model)
    name = config.model_type
    own = f"transformers.models.{name}.modeling_{name}"
    return (
        name in KNOWN
        and type(model).__module__ == own
        and type(model).__name__.endswith("ForCausalLM")
        and all(type(layer).__module__ == own for layer in layers)
        and config.hidden_act == "silu"
        and not model.training
        and all(p.device.type in ("cpu", "meta") for p in model.parameters())
    )


def _plain(shape: AttentionShape, first: AttentionShape) -> bool:
    return shape.softcap is None and shape.sinks is None and shape.scaling == first.scaling


def _products_of(layer: Any) -> list[Product | None]:
    """Query-key-value, output, gate-up, down; None where a linear is no packed product."""
    attention, mlp = layer.self_attn, layer.mlp
    groups = (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    )
    return [_product_of(group) for group in groups]


def _product_of(group: Sequence[nn.Module]) -> Product | None:
    first = group[0]
    if not isinstance(first, CalibratedLinear):
        return None
    product = first.product
    whole = len(product.layers) == len(group) and all(
        mine is other for mine, other in zip(product.layers, group, strict=True)
    )
    return product if whole and product.packed is not None and product.packed.is_mkldnn else None


def _alike(layers: Sequence[Sequence[Product | None]]) -> bool:
    kinds = {tuple(None if p is None else (p.kind, p.wide) for p in layer) for layer in layers}
    return len(kinds) == 1 and None not in kinds.pop()


def _weights(layer: Any, products: Sequence[Product]) -> list[Tensor]:
    """In the order of `LayerTensors.weights`."""
    into, out, up, down = (cast(Tensor, product.packed) for product in products)
    before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return [before.detach(), into, out, after.detach(), up, down]


def _has_norms(layer: Any) -> bool:
    return hasattr(layer.self_attn, "q_norm")


def _per_head(attention: Any, sizes: LayerSizes) -> Tensor:
    """Weights of the norms of query and key heads, [heads + kv_heads, D]."""
    query, key = attention.q_norm.weight.detach(), attention.k_norm.weight.detach()
    return torch.cat([query.expand(sizes.heads, -1), key.expand(sizes.kv_heads, -1)])


def _parts(decoder: nn.Module) -> Iterator[tuple[dict[str, Any], str, nn.Module]]:
    """The layers and all that is in them."""
    layers = cast(nn.ModuleList, decoder.layers)
    yield decoder._modules, "layers", layers
    for holder in layers.modules():
        for name, module in holder._modules.items():
            if module is not None:
                yield holder._modules, name, module
