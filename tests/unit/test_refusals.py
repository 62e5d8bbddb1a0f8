"""What cannot be decoded row by row is refused by name, before any forward runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from draftproof import Pair, UnsupportedModelError
from draftproof.testing import tiny_model

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def model_of(model_type: str, **options: Any) -> Any:
    config = AutoConfig.for_model(model_type, **{**SMALL, **options})
    return AutoModelForCausalLM.from_config(config).eval()


def encoder_decoder() -> Any:
    config = AutoConfig.for_model(
        "t5", vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    return AutoModelForSeq2SeqLM.from_config(config).eval()


def rope(kind: str, **options: Any) -> dict[str, Any]:
    """Configuration values of a rope scaling, in the names of the installed transformers."""
    scaling = {"rope_type": kind, "factor": 2.0, **options}
    if hasattr(tiny_model().config, "rope_parameters"):  # from 5.0 on
        return {"rope_parameters": {"rope_theta": 10000.0, **scaling}}
    return {"rope_scaling": scaling}


SUBJECTS: dict[str, tuple[Any, str]] = {
    "recurrent state": (lambda: model_of("mamba", state_size=4), "MambaForCausalLM"),
    "short convolutions": (
        lambda: model_of("lfm2", layer_types=["conv", "full_attention"]),
        "layer 0 is 'conv'",
    ),
    "linear attention": (
        lambda: model_of(
            "qwen3_next",
            layer_types=["full_attention", "linear_attention"],
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        "layer 1 is 'linear_attention'",
    ),
    "encoder and decoder": (encoder_decoder, "encoder-decoder models are not supported"),
    "positions from the mask (ALiBi)": (lambda: model_of("bloom"), "takes no position_ids"),
}


def refuse_to_run(module: torch.nn.Module, inputs: Any) -> None:
    raise AssertionError("a forward ran")


@pytest.mark.parametrize("draft", [False, True], ids=["as target", "as draft"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_refused_by_name_before_any_forward(name: str, draft: bool) -> None:
    make, message = SUBJECTS[name]
    model = make()
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    hook = model.register_forward_pre_hook(refuse_to_run)
    with pytest.raises(UnsupportedModelError, match=message):
        Pair(tiny_model(), model, numerics="fast") if draft else Pair(model, numerics="fast")
    hook.remove()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())


def test_the_hook_would_have_noticed_a_forward() -> None:
    model = tiny_model()
    model.register_forward_pre_hook(refuse_to_run)
    with pytest.raises(UnsupportedModelError, match="its forward fails.*a forward ran"):
        Pair(model, numerics="fast")


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_other_rope_scalings_depend_on_no_neighbour(kind: str) -> None:
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    scaling = rope(kind, original_max_position_embeddings=128, **more)
    pair = Pair(tiny_model(seed=1, **scaling), "ngram", numerics="fast")
    assert len(pair.generate([[1, 2, 3]], max_new_tokens=4)[0].token_ids) == 4


@pytest.mark.parametrize("model_type", ["falcon", "gpt_neo"])
def test_attention_that_cannot_be_replaced_is_refused(model_type: str) -> None:
    options = {"attention_types": [[["global", "local"], 1]]} if model_type == "gpt_neo" else {}
    named = {"num_layers": 2} if model_type == "gpt_neo" else {}
    model = model_of(model_type, **options, **named)
    with pytest.raises(UnsupportedModelError, match="0 of 2 layers attend through"):
        Pair(model, numerics="fast")
