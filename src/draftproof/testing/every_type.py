"""Tiny random models of every causal type that the installed transformers has.

A type's own default configuration is shrunk by overriding what is a size in it, so that a type of
tomorrow needs no line here; the few that this does not get right have their overrides in a table.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftproof.testing.models import VOCAB_SIZE, WINDOW, randomise

LAYERS = 4
MOST = 20_000_000  # weights of a model that is tiny


def _named(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


# what a size is set to, wherever a configuration has it
SIZES: dict[str, int] = {
    **_named(VOCAB_SIZE, "vocab_size vocab_size_per_layer_input unpadded_vocab_size n_words"),
    **_named(32, "hidden_size n_embd d_model hidden_dim embedding_size word_embed_proj_dim dim"),
    **_named(32, "attention_hidden_size embedding_dim out_hidden_size projection_dim emb_dim"),
    **_named(48, "intermediate_size ffn_dim n_inner ffn_hidden_size dim_ff dff d_ff"),
    **_named(48, "decoder_ffn_dim encoder_ffn_dim intermediate_size_mlp shared_intermediate_size"),
    **_named(24, "moe_intermediate_size shared_expert_intermediate_size"),
    **_named(LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers"),
    **_named(LAYERS, "num_decoder_layers num_blocks depth"),
    **_named(4, "num_attention_heads n_head n_heads num_heads attention_heads"),
    **_named(4, "decoder_attention_heads encoder_attention_heads swa_num_attention_heads"),
    **_named(2, "num_key_value_heads swa_num_key_value_heads kv_n_heads num_key_value_groups"),
    **_named(8, "head_dim swa_head_dim attention_head_dim dim_head kv_channels d_kv"),
    **_named(8, "qk_rope_head_dim qk_nope_head_dim v_head_dim index_head_dim d_head"),
    **_named(8, "query_pre_attn_scalar"),
    **_named(16, "qk_head_dim kv_lora_rank q_lora_rank laurel_rank"),
    **_named(4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_named(2, "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k top_k_experts"),
    **_named(1, "n_group topk_group num_expert_group first_k_dense_replace n_shared_experts"),
    **_named(1, "num_shared_experts num_dense_layers moe_num_shared_experts"),
    **_named(256, "max_position_embeddings n_positions n_ctx max_seq_len model_max_length"),
    **_named(WINDOW, "sliding_window sliding_window_size window_size"),
    **_named(8, "hidden_size_per_layer_input linear_key_head_dim linear_value_head_dim"),
    **_named(2, "linear_num_key_heads linear_num_value_heads"),
    **_named(8, "mamba_d_head mamba_head_dim state_size mamba_d_state time_step_rank"),
    **_named(4, "rotary_dim"),
    **_named(8, "mamba_n_heads n_mamba_heads"),
    **_named(2, "num_kv_shared_layers n_groups"),
    **_named(64, "ngram_vocab_size_base max_source_positions num_position_embeddings"),
}
COUNTS = [name for name, size in SIZES.items() if size == LAYERS and "layer" in name]
FILLED = ("head_dim", "num_key_value_heads")  # where the default is no number
LEFT_OUT = ("id2label", "label2id", "architectures", "transformers_version")
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3}

# per type: what a default does not say, or sizes that belong together in another way
_BY_KIND = {"rope_type": "default", "rope_theta": 10000.0}
OVERRIDES: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _BY_KIND, "sliding_attention": _BY_KIND}
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1}
    | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
    },
    "dots3_note_text": {"per_layer_config": {}},
    "falcon_h1": {"mamba_d_ssm": 64},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "longcat_flash": {
        "expert_ffn_hidden_size": 24,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "qk_head_dim": 16,
    },
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ple_embed_dim": 32,
        "split_ngram_parts": 2,
        "hc_lowrank": 8,
    },
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}

OVERRIDES["qwen4_exp"] = {"text_config": OVERRIDES["qwen4_exp_text"]}
OVERRIDES["dots3_note"] = {"text_config": OVERRIDES["dots3_note_text"]}

# per type, why there is no tiny model of it
NOT_MADE: dict[str, str] = {
    "dbrx": "its default configuration makes no model: its attention's has no rope_theta",
    "gemma3n": "its image part needs the package timm; its text part is gemma3n_text",
    "gemma4_assistant": "a draft head that reads the states of another model, no model by itself",
    "gemma4_unified_assistant": "a draft head that reads the states of another model",
    "musicgen": "makes music: its configuration is of three models, and not of a language model",
    "musicgen_melody": "makes music: its configuration is of three models",
}


def causal_types() -> list[str]:
    """Names of all causal types of the installed transformers."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def class_of(model_type: str) -> str:
    """Name of the class that transformers makes of a type."""
    name: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return str(name if isinstance(name, str) else name[0])


def tiny_config(model_type: str) -> Any:
    """A type's default configuration with small sizes."""
    kind = CONFIG_MAPPING[model_type]
    settings = kind().to_dict()
    shrunk = shrink(settings, OVERRIDES.get(model_type, {}))
    return kind(**shrunk)


def shrink(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's settings with small sizes, in nested configurations as well."""
    layers = next(filter(None, (settings.get(name) for name in COUNTS)), None)
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None and name in FILLED:
            value = SIZES[name]
        if name == "tie_word_embeddings":
            value = False  # a tied random head says the token again that it was given
        if value is None or name in LEFT_OUT or name in overrides:
            continue  # what is None may have another default that follows from the others
        if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            found[name] = {key: v for key, v in value.items() if int(key) < LAYERS}
        elif isinstance(value, dict) and name.endswith("_config"):
            found[name] = shrink(value, overrides.get(name, {}))
        elif name in IDS:
            found[name] = IDS[name]
        elif name in SIZES and type(value) is int and value:
            found[name] = SIZES[name]
        elif isinstance(value, list) and layers is not None and len(value) == layers:
            found[name] = fewer(value)
        else:
            found[name] = copy.deepcopy(value)
    if found.get("kv_lora_rank") and found.get("num_key_value_heads"):
        found["num_key_value_heads"] = SIZES["num_attention_heads"]
    plain = {name: v for name, v in overrides.items() if not name.endswith("_config")}
    return found | copy.deepcopy(plain)


def fewer(values: list[Any]) -> list[Any]:
    """One entry for each of LAYERS layers, with every kind that there is."""
    kinds = list(dict.fromkeys(map(repr, values)))
    first = [values[[repr(v) for v in values].index(kind)] for kind in kinds]
    if len(first) > LAYERS:  # a number of each layer's own
        return values[:LAYERS]
    return [first[n % len(first)] for n in range(LAYERS)]


def tiny_model_of(model_type: str, seed: int = 0) -> Any:
    """A random model of a type, float32, in evaluation mode. Raises whatever goes wrong."""
    config = tiny_config(model_type)
    if hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True  # encoders that can be decoders
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"{size:,} weights with every known size made small")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model = model.to(torch.float32).eval()
    randomise(model, seed)
    return model
