"""Models with adapters: those within the layers are decoded, virtual tokens are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch

from draftproof import Pair, UnsupportedModelError, custom_generate
from draftproof.hf.capability import unwrapped
from draftproof.testing import stock_generate, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

PROMPTS = [[5, 6, 7, 8], [9, 10, 3, 4, 5, 6, 7, 11, 12], [1, 2]]
NEW_TOKENS = 12
WIDTH = max(map(len, PROMPTS))


def adapted(config: peft.PeftConfig) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return peft.get_peft_model(tiny_model(), config).eval()


def low_rank(**options: Any) -> Any:
    return adapted(
        peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=4,
            target_modules=["q_proj", "v_proj", "up_proj"],
            init_lora_weights=False,
            **options,
        )
    )


def learned_scales() -> Any:
    model = adapted(
        peft.IA3Config(
            task_type="CAUSAL_LM",
            target_modules=["k_proj", "v_proj", "down_proj"],
            feedforward_modules=["down_proj"],
        )
    )
    for name, parameter in model.named_parameters():
        if "ia3" in name:
            parameter.data.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(1))
    return model


def padded() -> dict[str, torch.Tensor]:
    rows = [[0] * (WIDTH - len(prompt)) + prompt for prompt in PROMPTS]
    mask = [[0] * (WIDTH - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("make", [low_rank, learned_scales])
def test_an_adapter_within_the_layers_is_decoded(make: Callable[[], Any], numerics: str) -> None:
    model = make()
    expected = [stock_generate(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    assert expected != [stock_generate(tiny_model(), prompt, NEW_TOKENS) for prompt in PROMPTS]
    pair = Pair(model, "ngram", numerics=numerics)
    results = pair.generate(PROMPTS, max_new_tokens=NEW_TOKENS, num_speculative_tokens=3)
    assert [result.token_ids for result in results] == expected


def test_an_adapter_in_the_drop_in() -> None:
    model = low_rank()
    expected = [stock_generate(model, prompt, NEW_TOKENS) for prompt in PROMPTS]
    output = model.generate(
        **padded(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        prompt_lookup_num_tokens=3,
        custom_generate=custom_generate,
    )
    assert output[:, WIDTH:].tolist() == expected


VIRTUAL = [peft.PromptTuningConfig, peft.PrefixTuningConfig, peft.PromptEncoderConfig]


@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_are_refused_by_name(kind: Callable[..., peft.PeftConfig]) -> None:
    model = adapted(kind(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(UnsupportedModelError, match="virtual tokens"):
        Pair(model)
    with pytest.raises(UnsupportedModelError, match=f"{kind.__name__}.* virtual tokens"):
        model.generate(**padded(), max_new_tokens=4, custom_generate=custom_generate)


def test_the_model_below_virtual_tokens_is_itself_again_afterwards() -> None:
    base = tiny_model()
    tuned = peft.get_peft_model(
        base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    )
    with pytest.raises(UnsupportedModelError, match="virtual tokens"):
        tuned.generate(**padded(), max_new_tokens=4, custom_generate=custom_generate)
    output = base.generate(
        **padded(), max_new_tokens=4, do_sample=False, custom_generate=custom_generate
    )
    expected = [stock_generate(tiny_model(), prompt, 4) for prompt in PROMPTS]
    assert output[:, WIDTH:].tolist() == expected


def test_inputs_that_a_replaced_function_prepares_are_refused_without_a_name() -> None:
    """What feeds other tokens than it was given is found by comparing, whoever wrote it."""
    model = tiny_model()
    prepare = model.prepare_inputs_for_generation

    def with_virtual_tokens(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs = prepare(input_ids, *args, **kwargs)
        embedded = model.get_input_embeddings()(inputs.pop("input_ids"))
        return inputs | {"inputs_embeds": embedded * 1.5}

    model.prepare_inputs_for_generation = with_virtual_tokens
    with pytest.raises(UnsupportedModelError, match=r"first in model\.layers\.0"):
        Pair(model)


def test_only_adapters_are_unwrapped() -> None:
    model = tiny_model()
    assert unwrapped(model) is model
