"""Tiny random models of many architectures: float32, seeded, and never stuck on one token.

A freshly initialised model repeats itself within a few tokens, so that a stale cache entry or a
wrong position would change nothing. Here every weight matrix keeps the size of what goes through
it, and queries and keys are larger still: attention is sharp, and every token depends on where
and on what the others are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 101
WINDOW = 8
SHARPNESS = 1.7  # scale of queries and keys

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
HEAD_DIM = {"head_dim": 8}
MIXED = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
PARALLEL_HEADS = {"num_key_value_heads": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How to make a tiny configuration of one of transformers' model types.

    options:  what differs from COMMON
    rename:   configuration names of COMMON that this type calls otherwise
    since:    oldest release tested in which it attends through the attention interface
    stock:    attention implementation of transformers that is right for it
    """

    model_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (4, 57)
    stock: str = "sdpa"

    @property
    def supported(self) -> bool:
        """Whether the installed transformers lets its attention be replaced."""
        major, minor = transformers.__version__.split(".")[:2]
        return (int(major), int(minor)) >= self.since

    @property
    def windowed(self) -> bool:
        """Whether some layer sees only the last WINDOW tokens."""
        return self.options.get("sliding_window") is not None

    def config(self, **overrides: Any) -> Any:
        """A transformers configuration."""
        settings = {**COMMON, **self.options, **overrides}
        named = {self.rename.get(name, name): value for name, value in settings.items()}
        return AutoConfig.for_model(self.model_type, **named)


def _table(*rows: Architecture) -> dict[str, Architecture]:
    return {row.model_type: row for row in rows}


GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}

ARCHITECTURES = _table(
    Architecture(model_type="llama"),
    Architecture(model_type="mistral", options={**HEAD_DIM, "sliding_window": WINDOW}),
    Architecture(model_type="qwen2"),
    Architecture(model_type="qwen3", options=HEAD_DIM),
    Architecture(model_type="gemma", options=HEAD_DIM),
    Architecture(
        model_type="gemma2",
        options={**HEAD_DIM, **MIXED, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
        stock="eager",  # sdpa leaves the softcap out
    ),
    Architecture(
        model_type="gemma3_text", options={**HEAD_DIM, **MIXED, "query_pre_attn_scalar": 8}
    ),
    Architecture(model_type="phi"),
    Architecture(model_type="phi3", options={"sliding_window": None}),
    Architecture(model_type="gpt2", rename=GPT2_NAMES),
    Architecture(model_type="gpt_bigcode", rename=GPT2_NAMES),
    Architecture(
        model_type="opt",
        options={"word_embed_proj_dim": 32},
        rename={"intermediate_size": "ffn_dim"},
    ),
    Architecture(model_type="gpt_neox"),
    Architecture(model_type="olmo"),
    Architecture(model_type="olmo2"),
    Architecture(model_type="olmo3", options=MIXED),
    Architecture(model_type="glm", options=HEAD_DIM),
    Architecture(model_type="glm4", options=HEAD_DIM),
    Architecture(model_type="mixtral", options=EXPERTS),
    Architecture(
        model_type="qwen2_moe",
        since=(5, 5),
        options={**SMALL_EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    Architecture(model_type="qwen3_moe", options={**SMALL_EXPERTS, **HEAD_DIM}),
    Architecture(
        model_type="olmoe", since=(5, 5), options={"num_experts": 4, "num_experts_per_tok": 2}
    ),
    Architecture(
        model_type="gpt_oss",
        options={**EXPERTS, **HEAD_DIM, **MIXED},
        stock="eager",  # sdpa leaves the sinks out
    ),
    Architecture(model_type="stablelm", since=(5, 5)),
    Architecture(model_type="cohere"),
    Architecture(model_type="cohere2", options={**HEAD_DIM, **MIXED}),
    Architecture(model_type="starcoder2", options={"sliding_window": WINDOW}),
    Architecture(model_type="granite"),
    Architecture(model_type="granitemoe", options=EXPERTS),
    Architecture(model_type="smollm3"),
    Architecture(model_type="ernie4_5", options=HEAD_DIM),
    Architecture(model_type="exaone4", options=MIXED),
    Architecture(model_type="seed_oss", options=HEAD_DIM),
    Architecture(model_type="helium", options=HEAD_DIM),
    Architecture(model_type="nemotron", since=(5, 24), options=HEAD_DIM),
    Architecture(model_type="arcee"),
    Architecture(model_type="persimmon", options=PARALLEL_HEADS),
    Architecture(
        model_type="deepseek_v3",
        options={
            **PARALLEL_HEADS,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    Architecture(
        model_type="gptj",
        since=(5, 24),
        rename=GPT2_NAMES,
        options={"rotary_dim": 4},
        stock="eager",
    ),
    Architecture(
        model_type="codegen",
        since=(5, 24),
        rename=GPT2_NAMES,
        options={"rotary_dim": 4},
        stock="eager",
    ),
)


def tiny_model(architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Any:
    """A random causal language model of `architecture`, float32, in evaluation mode.

    overrides: configuration values, in the names of COMMON
    Raises KeyError for an architecture that is not in ARCHITECTURES.
    """
    config = ARCHITECTURES[architecture].config(**overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=ARCHITECTURES[architecture].stock
        )
    randomise(model.to(torch.float32).eval(), seed)
    return model


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw every parameter anew, from `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.copy_(noise * _scale(name, parameter.shape))
        else:
            # norms stay near what they are (1, or 0 where 1 is added), biases near 0
            sharper = 1.0 if "q_norm" in name or "k_norm" in name else 0.0
            parameter.add_(noise * 0.1 + sharper)
    model.requires_grad_(False)


@torch.no_grad()
def noisy_copy(model: Any, *, amount: float = 0.15, seed: int = 0) -> Any:
    """A draft that agrees with `model` often, but not always: a copy with noise on every weight."""
    generator = torch.Generator().manual_seed(seed)
    draft = copy.deepcopy(model)
    for parameter in draft.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_(noise * parameter.std(correction=0) * amount)
    return draft


def _scale(name: str, shape: torch.Size) -> float:
    if "embed" in name or "wte" in name or "wpe" in name:
        return 1.0
    sharp = any(part in name for part in ("q_proj", "k_proj", "query_key", "qkv", "c_attn"))
    return (SHARPNESS if sharp else 1.0) / math.sqrt(shape[-1])
