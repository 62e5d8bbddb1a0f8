"""The only module that touches transformers' internals.

Supported: transformers 4.57 up to the newest. What moved between the versions and is bridged here:
the cache keyword (`past_key_values` until 5.23, `cache` since), `Cache.update`'s extra arguments,
`dtype` / `torch_dtype` on the config, and models without `logits_to_keep`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, Cache
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from draftproof.errors import UnsupportedModelError
from draftproof.numerics.attention import AttentionShape, attend, attend_standard

ATTENTION = "draftproof"
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


class Layout(Protocol):
    """Where the tokens of one forward sit in the KV cache; given to every attention layer."""

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the new tokens, [1, kv_heads, N, D], in a layer's cache."""

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [1, heads, N, D] -> output [1, N, heads, D]."""


@dataclass(slots=True)
class Binding:
    """Shared by a model's attention modules; holds the layout while a forward runs."""

    layout: Layout | None = None
    shapes: Any = None


def attention_forward(
    module: nn.Module,
    query: Tensor,  # [B, heads, Q, D]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention registered with transformers as "draftproof".

    Inside an executor's forward the layout says which cache slots each query sees, and the mask
    that transformers made is ignored. Elsewhere (`model.generate`, training code) it is ordinary
    attention under the mask given.
    """
    if kwargs.get("position_bias") is not None:
        raise UnsupportedModelError(f"{type(module).__name__}: position_bias is not supported")
    shape = AttentionShape(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    binding: Binding | None = getattr(module, "draftproof", None)
    if binding is not None and binding.layout is not None:
        return binding.layout.attend(shape, query, key, value), None
    shapes = None if binding is None else binding.shapes
    return attend_standard(shape, query, key, value, attention_mask, shapes), None


AttentionInterface.register(ATTENTION, attention_forward)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class SlotCache(Cache):
    """A cache of `[rows, kv_heads, slots, D]` tensors, allocated once and written in place.

    `update` returns the layer's whole tensors: the attention function takes the views it needs,
    so no key or value is ever copied to be read.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        super().__init__(layers=[])
        self.keys, self.values = keys, values
        self.layout: Layout | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.layout is not None
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        self.layout.write(keys, values, key_states, value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given; no model may derive them from here

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer stores per token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(slots=True)
class _Probe:
    """Records what each layer would store, and whether it attends through the registry."""

    layers: dict[int, LayerKV] = field(default_factory=dict)
    attended: int = 0

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self.attended += 1
        return attend(shape, query, keys, values, mask=None).transpose(1, 2).contiguous()


class _ProbeCache(Cache):
    def __init__(self, probe: _Probe) -> None:
        super().__init__(layers=[])
        self.probe = probe

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        _, heads, _, dim = key_states.shape
        self.probe.layers[layer_idx] = LayerKV(
            heads, dim, value_states.shape[-1], key_states.dtype, key_states.device
        )
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def text_config(model: nn.Module) -> Any:
    """The configuration of the decoder itself."""
    config: Any = model.config
    return config.get_text_config(decoder=True)


def refuse_unsupported(model: nn.Module) -> None:
    """Raise UnsupportedModelError, naming the culprit, before any forward runs."""
    config, name = text_config(model), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name}: encoder-decoder models are not supported")
    for index, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if kind not in SUPPORTED_LAYERS:
            raise UnsupportedModelError(
                f"{name}: layer {index} is {kind!r}; only {sorted(SUPPORTED_LAYERS)} keep one "
                "entry per token that can be rolled back"
            )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(f"{name}: layers with a recurrent state cannot be rolled back")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(f"{name}: its forward takes no position_ids (ALiBi?)")
    _refuse_length_dependent_rope(config, name)


def _refuse_length_dependent_rope(config: Any, name: str) -> None:
    """Frequencies that follow the longest row of a batch make rows depend on their neighbours."""
    rope = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    for settings in nested:
        kind = settings.get("rope_type", settings.get("type"))
        if kind in ("dynamic", "longrope"):
            raise UnsupportedModelError(
                f"{name}: rope_type {kind!r} changes a row's frequencies with the longest row of "
                "the batch; load it with another rope_scaling"
            )


class BoundModel:
    """A transformers model prepared for flat ragged forwards; the model itself stays usable.

    Its attention implementation is switched to "draftproof" only while `forward` runs.

    Raises UnsupportedModelError when the model cannot be decoded row by row.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_unsupported(model)
        self.model: Any = model
        self.config = text_config(model)
        self.device: torch.device = next(model.parameters()).device
        self.vocab_size = int(self.config.vocab_size)
        self._binding = _bind(model)
        self._configs = _attention_configs(model)
        parameters = inspect.signature(model.forward).parameters
        # the keyword moved in 5.24; the old one still works there, with a deprecation warning
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._slices_logits = "logits_to_keep" in parameters
        self.layers = self._probe_layers()

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating point type."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def max_positions(self) -> int | None:
        """Context length of the model, None when its config does not say."""
        value = getattr(self.config, "max_position_embeddings", None)
        return None if value is None else int(value)

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, positions: Tensor, cache: Cache, layout: Any, keep: Tensor
    ) -> Tensor:
        """ids, positions [N] -> logits [len(keep), V] of the tokens at flat indices `keep`."""
        inputs = {
            "input_ids": ids[None],
            "position_ids": positions[None],
            # a 4-D mask goes through every model unchanged; the layout decides who sees what
            "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=ids.device),
            self._cache_name: cache,
            "use_cache": True,
        }
        if self._slices_logits:
            inputs["logits_to_keep"] = keep
        with self._active(layout):
            logits: Tensor = self.model(**inputs).logits[0]
        return logits if self._slices_logits else logits[keep.to(logits.device)]

    @contextlib.contextmanager
    def _active(self, layout: Any) -> Iterator[None]:
        before = [config._attn_implementation for config in self._configs]
        self._binding.layout = layout
        try:
            for config in self._configs:
                config._attn_implementation = ATTENTION
            yield
        finally:
            self._binding.layout = None
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name

    def _probe_layers(self) -> list[LayerKV]:
        """One token through the model: what each layer stores, and whether we are in control."""
        probe = _Probe()
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.forward(zero, zero, _ProbeCache(probe), probe, zero)
        name, count = type(self.model).__name__, int(self.config.num_hidden_layers)
        missing = sorted(set(range(count)) - set(probe.layers))
        if missing:
            raise UnsupportedModelError(f"{name}: layers {missing} keep no keys and values")
        if probe.attended != count:
            raise UnsupportedModelError(
                f"{name}: {probe.attended} of {count} layers attend through transformers' "
                "attention interface; the others cannot be given their own rows"
            )
        return [probe.layers[index] for index in range(count)]


def _bind(model: nn.Module) -> Binding:
    """Give every attention module the model's one Binding (kept when there already is one)."""
    modules = [m for m in model.modules() if "layer_idx" in vars(m)]
    found = next((vars(m)["draftproof"] for m in modules if "draftproof" in vars(m)), None)
    binding = found if isinstance(found, Binding) else Binding()
    for module in modules:
        module.draftproof = binding  # type: ignore[assignment]
    return binding


def _attention_configs(model: nn.Module) -> list[Any]:
    """Every distinct config object whose attention implementation a module may read."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return list(configs.values())


@contextlib.contextmanager
def using_attention(model: nn.Module, shapes: Any = None) -> Iterator[None]:
    """Run `model.generate(...)` with draftproof's attention function under given shapes."""
    binding, configs = _bind(model), _attention_configs(model)
    before = [config._attn_implementation for config in configs]
    binding.shapes = shapes
    try:
        for config in configs:
            config._attn_implementation = ATTENTION
        yield
    finally:
        binding.shapes = None
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def load_model(name: str, *, dtype: str, device: str, model_kwargs: dict[str, Any]) -> Any:
    """`AutoModelForCausalLM.from_pretrained`, in evaluation mode, on `device`."""
    options = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype), **model_kwargs}
    model = AutoModelForCausalLM.from_pretrained(name, **options)
    # a device map or a quantiser has already placed the weights
    return (model if "device_map" in options else model.to(device)).eval()


def load_tokenizer(name: str, **kwargs: Any) -> Any:
    """`AutoTokenizer.from_pretrained`."""
    return AutoTokenizer.from_pretrained(name, **kwargs)


def default_eos(model: Any) -> int | Sequence[int] | None:
    """The eos id or ids that `model.generate` would use."""
    value: int | Sequence[int] | None = model.generation_config.eos_token_id
    return value if value is not None else getattr(text_config(model), "eos_token_id", None)


def generate_arguments(names: Sequence[str]) -> dict[str, Any]:
    """Arguments of the `generate` call that is running, None for those not given.

    transformers drops `assistant_model` and `streamer` when `custom_generate` is a callable, so
    they are read from the frame of `generate` itself.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "generate" and "assistant_model" in frame.f_locals:
            return {name: frame.f_locals.get(name) for name in names}
        frame = frame.f_back
    return dict.fromkeys(names)


def plain_criteria(criteria: Any) -> list[str]:
    """Names of the stopping criteria that are more than length and eos."""
    known = (MaxLengthCriteria, EosTokenCriteria)
    return [type(item).__name__ for item in criteria or () if not isinstance(item, known)]


def decoder_only_output(**fields: Any) -> Any:
    """transformers' own output class."""
    return GenerateDecoderOnlyOutput(**fields)
