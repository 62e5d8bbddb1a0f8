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
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, Cache
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from draftproof.errors import UnsupportedModelError
from draftproof.numerics.attention import AttentionShape, attend, attend_standard
from draftproof.numerics.linear import (
    RoundedRows,
    calibrate_linears,
    fill_rows,
    restore_linears,
)
from draftproof.numerics.shapes import Shapes

ATTENTION = "draftproof"
PLAIN = Shapes(view=1)
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


class Layout(Protocol):
    """Where the tokens of one forward sit in the KV cache; given to every attention layer."""

    @property
    def shapes(self) -> Shapes:
        """Rounding rules of this forward."""

    def write(self, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        """Store the new tokens, [1, kv_heads, N, D], in a layer's cache."""

    def attend(self, shape: AttentionShape, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [1, heads, N, D] -> output [1, N, heads, D]."""


@dataclass(slots=True)
class Binding:
    """Shared by a model's attention and linear modules.

    layout:  set while an executor's forward runs
    shapes:  set while transformers' own loop runs under this package's numerics
    """

    layout: Layout | None = None
    shapes: Shapes | None = None

    @property
    def active(self) -> bool:
        """Whether calibrated kernels are wanted right now."""
        return self.layout is not None or self.shapes is not None

    @property
    def row_multiple(self) -> int:
        """Rows a linear is called with are multiples of this."""
        shapes = self.shapes if self.layout is None else self.layout.shapes
        return 1 if shapes is None else shapes.tokens


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
    shapes = (None if binding is None else binding.shapes) or PLAIN
    return attend_standard(shape, query, key, value, attention_mask, shapes), None


def experts_forward(
    module: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Mixture-of-experts layers: the rows an expert gets depend on the batch, so they are rounded.

    hidden [N, D], top_k_index and top_k_weights [N, k] -> [N, D]. Experts add to a token in
    ascending order, whatever other tokens they serve. Registered with transformers' experts
    interface (5.0 and later; before that experts are ordinary linears).
    """
    multiple = module.draftproof.row_multiple
    out = torch.zeros_like(hidden)
    for expert in top_k_index.unique().tolist():
        token, place = torch.where(top_k_index == expert)
        rows = _expert(module, expert, fill_rows(hidden[token], multiple))[: len(token)]
        out.index_add_(0, token, (rows * top_k_weights[token, place, None]).to(out.dtype))
    return out


def _expert(module: Any, expert: int, rows: Tensor) -> Tensor:
    name = "gate_up_proj" if module.has_gate else "up_proj"
    up = _project(module, name, expert, rows)
    inner = module._apply_gate(up) if module.has_gate else module.act_fn(up)
    return _project(module, "down_proj", expert, inner)


def _project(module: Any, name: str, expert: int, rows: Tensor) -> Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return functional.linear(rows, weight.T if module.is_transposed else weight, bias)


with contextlib.suppress(ImportError):  # before 5.0 there is no such interface
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(ATTENTION, experts_forward)

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
    shapes: Shapes = PLAIN

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

    Its attention implementation is switched to "draftproof" only while `forward` runs, and so are
    its linears (`rewrite` says what was done to them); see `release`.

    Raises UnsupportedModelError when the model cannot be decoded row by row.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_unsupported(model)
        self.model: Any = model
        self.config = text_config(model)
        self.device: torch.device = next(model.parameters()).device
        self.vocab_size = int(self.config.vocab_size)
        self._binding = _bind(model)
        self._switch = _Switch(model)
        self.rewrite = calibrate_linears(model, self._binding)
        parameters = inspect.signature(model.forward).parameters
        # the keyword moved in 5.24; the old one still works there, with a deprecation warning
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._slices_logits = "logits_to_keep" in parameters
        self.layers = self._probe_layers()

    def release(self) -> None:
        """Give the model its ordinary linears back and drop their float32 copies."""
        restore_linears(self.model)

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
        self._binding.layout = layout
        try:
            with self._switch:
                yield
        finally:
            self._binding.layout = None

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
    modules = [m for m in model.modules() if "layer_idx" in vars(m) or hasattr(m, "is_transposed")]
    found = next((vars(m)["draftproof"] for m in modules if "draftproof" in vars(m)), None)
    binding = found if isinstance(found, Binding) else Binding()
    for module in modules:
        module.draftproof = binding  # type: ignore[assignment]
    return binding


class _Switch:
    """Points every config of a model at this package's attention and experts, and back again."""

    def __init__(self, model: nn.Module) -> None:
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        # models without experts have no experts implementation to switch
        self.places = [
            (config, name)
            for config in configs.values()
            for name in ("_attn_implementation", "_experts_implementation")
            if getattr(config, name, None) is not None or name == "_attn_implementation"
        ]
        self.before: list[Any] = []

    def __enter__(self) -> None:
        self.before = [getattr(config, name) for config, name in self.places]
        for config, name in self.places:
            setattr(config, name, ATTENTION)

    def __exit__(self, *error: object) -> None:
        for (config, name), value in zip(self.places, self.before, strict=True):
            setattr(config, name, value)


@contextlib.contextmanager
def same_numerics(bound: BoundModel, shapes: Shapes) -> Iterator[None]:
    """Run transformers' own `model.generate(...)` with this package's kernels and shapes.

    Its attention and linears are then called as an executor with these `shapes` calls them, so
    that outputs can be compared bit for bit. Give `generate` a plain `DynamicCache()` for models
    with a sliding window: a cache that drops old keys moves the others to other slots.
    """
    bound._binding.shapes = shapes
    try:
        with bound._switch, RoundedRows(shapes.tokens):
            yield
    finally:
        bound._binding.shapes = None


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
