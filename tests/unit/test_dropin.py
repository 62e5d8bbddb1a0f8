"""The transformers door: what comes back, what is refused by name, and what is left alone."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from draftproof import InputError, Pair, UnsupportedArgumentError, custom_generate
from draftproof.testing import Oracle, assert_same_tokens, tiny_model, tiny_tokenizer

NEW = 12
PAD = 0
PLAIN = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": PAD}


@functools.cache
def oracle() -> Oracle:
    return Oracle.of(tiny_model(seed=1), (3, 20, 9, 1), tokens=NEW)


@functools.cache
def draft() -> Any:
    return tiny_model(seed=2)


def left_padded(prompts: list[list[int]], pad: int = PAD) -> dict[str, Tensor]:
    width = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[pad] * (width - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
    }


def ours(model: Any = None, **options: Any) -> Any:
    """`generate` on the oracle's prompts through this package."""
    inputs = {**left_padded(oracle().prompts), **PLAIN, "numerics": "fast", **options}
    return (model or oracle().model).generate(custom_generate=custom_generate, **inputs)


def own(**options: Any) -> Any:
    """transformers' own greedy decoding of the same batch."""
    return oracle().model.generate(**{**left_padded(oracle().prompts), **PLAIN, **options})


# -- the same output ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "speculation",
    [{}, {"assistant_model": "draft"}, {"prompt_lookup_num_tokens": 3}, {"max_num_seqs": 2}],
    ids=str,
)
def test_a_left_padded_batch_comes_back_as_generate_gives_it(speculation: dict[str, Any]) -> None:
    options = {k: draft() if v == "draft" else v for k, v in speculation.items()}
    for eos in (None, oracle().continuations[1][4], [new[6] for new in oracle().continuations]):
        assert torch.equal(ours(eos_token_id=eos, **options), own(eos_token_id=eos))


def test_no_mask_means_no_padding() -> None:
    prompts = torch.tensor([oracle().prompts[1], oracle().prompts[1][::-1]])
    with_mask = oracle().model.generate(prompts, attention_mask=torch.ones_like(prompts), **PLAIN)
    direct = custom_generate(
        oracle().model, prompts, generation_config=config_of(max_length=20 + NEW), numerics="fast"
    )
    assert torch.equal(direct, with_mask)


def config_of(**options: Any) -> Any:
    config = tiny_model().generation_config
    for name, value in options.items():
        setattr(config, name, value)
    return config


def test_the_mask_alone_says_what_is_padding() -> None:
    """pad == eos, an eos in the middle of a prompt, and one at its start."""
    eos = 17
    prompts = [[5, eos, 6], oracle().prompts[1] * 2, [eos, 4]]
    subject = Oracle.ask(tiny_model(seed=1), prompts, tokens=NEW)
    output = subject.model.generate(
        **left_padded(prompts, pad=eos),
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=eos,
        eos_token_id=eos,
        prompt_lookup_num_tokens=4,
        custom_generate=custom_generate,
        numerics="fast",
    )
    expected = subject.expected(NEW, [[eos]] * 3)
    found = [row[: len(new)].tolist() for row, new in zip(output[:, 40:], expected, strict=True)]
    assert_same_tokens(found, expected)


def test_return_dict_in_generate() -> None:
    output = ours(return_dict_in_generate=True)
    assert torch.equal(output.sequences, own())
    assert type(output).__name__ == "GenerateDecoderOnlyOutput"


@pytest.mark.parametrize(
    "length", [{"min_new_tokens": 5}, {"min_length": 26}, {"min_length": 3}], ids=str
)
def test_least_lengths(length: dict[str, int]) -> None:
    eos = [new[2] for new in oracle().continuations]
    options = {"eos_token_id": eos, **length}
    for speculation in ({}, {"assistant_model": draft()}, {"prompt_lookup_num_tokens": 4}):
        assert torch.equal(ours(**speculation, **options), own(**options))


def test_max_length_counts_the_padded_prompt() -> None:
    options = {"max_new_tokens": None, "max_length": 25}
    assert torch.equal(ours(**options), own(**options))


@pytest.mark.parametrize(
    ("options", "drafted"),
    [
        ({"prompt_lookup_num_tokens": 3}, 3),
        ({"prompt_lookup_num_tokens": 3, "num_speculative_tokens": 2}, 2),
        ({"assistant_model": "five"}, 5),
        ({"assistant_model": "five", "num_speculative_tokens": 1}, 1),
        ({}, 0),
    ],
    ids=str,
)
def test_how_many_drafts(
    options: dict[str, Any], drafted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = Pair.stream

    def watched(self: Any, prompts: Any, **given: Any) -> Any:
        asked.append(given["num_speculative_tokens"])
        return real(self, prompts, **given)

    monkeypatch.setattr(Pair, "stream", watched)
    five = tiny_model(seed=2)
    five.generation_config.num_assistant_tokens = 5
    ours(**{k: five if v == "five" else v for k, v in options.items()})
    assert asked == [drafted]


# -- refused, by name -----------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 2}, "num_beams"),
    ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    ({"cache_implementation": "static"}, "cache_implementation"),
    ({"guidance_scale": 1.5}, "guidance_scale"),
    ({"token_type_ids": torch.zeros(4, 20, dtype=torch.int64)}, "token_type_ids"),
]


@pytest.mark.parametrize(("options", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_what_would_be_ignored_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    if name == "token_type_ids":  # `generate` itself refuses what a model does not take
        with pytest.raises(UnsupportedArgumentError, match=name):
            custom_generate(
                oracle().model, torch.tensor([[1]]), generation_config=config_of(), **options
            )
    else:
        with pytest.raises(UnsupportedArgumentError, match=name):
            ours(**options)


def test_a_stop_string_is_never_ignored() -> None:
    # transformers itself refuses some: it keeps the tokenizer back from callables
    with pytest.raises(ValueError, match="(?i)stop"):
        ours(stop_strings="a", tokenizer=tiny_tokenizer())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 1, 0]], "padded on the left"),
        ([[1, 0, 1]], "without holes"),
        ([[0, 0, 0]], "all padding"),
    ],
)
def test_other_paddings_are_refused(mask: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ours(input_ids=torch.tensor([[4, 5, 6]]), attention_mask=torch.tensor(mask))


# -- the model is left as it was ------------------------------------------------------------------


def state_of(model: Any) -> dict[str, Any]:
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return {
        "attention": [config._attn_implementation for config in configs.values()],
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }


def assert_untouched(model: Any, before: dict[str, Any]) -> None:
    after = state_of(model)
    assert after["attention"] == before["attention"]
    assert after["weights"].keys() == before["weights"].keys()
    assert all(torch.equal(after["weights"][k], v) for k, v in before["weights"].items())


def test_the_model_is_an_ordinary_one_afterwards_and_meanwhile() -> None:
    model = tiny_model(seed=1)
    before, expected = state_of(model), own()
    first = ours(model, prompt_lookup_num_tokens=3)
    assert_untouched(model, before)
    inputs = {**left_padded(oracle().prompts), **PLAIN}
    assert torch.equal(model.generate(**inputs), expected)
    assert torch.equal(ours(model, prompt_lookup_num_tokens=3), first)


def test_the_model_is_an_ordinary_one_after_an_exception_in_its_forward() -> None:
    model = tiny_model(seed=1)
    before, calls = state_of(model), []

    def fail_late(module: Any, inputs: Any, output: Any) -> None:
        calls.append(module)
        if len(calls) == 4:
            raise RuntimeError("no memory left, say")

    hook = model.model.layers[1].register_forward_hook(fail_late)
    with pytest.raises(RuntimeError, match="no memory left"):
        ours(model, prompt_lookup_num_tokens=3)
    hook.remove()
    assert_untouched(model, before)
    inputs = {**left_padded(oracle().prompts), **PLAIN}
    assert torch.equal(model.generate(**inputs), own())
    assert torch.equal(ours(model), own())


def test_the_model_can_be_used_between_two_rounds() -> None:
    model, found = tiny_model(seed=1), [[] for _ in oracle().prompts]
    for event in Pair(model, "ngram", numerics="fast").stream(oracle().prompts, max_new_tokens=NEW):
        found[event.index] += event.token_ids
        one = torch.tensor([oracle().prompts[0]])
        new = model.generate(one, attention_mask=torch.ones_like(one), **PLAIN)[0, 3:]
        assert new.tolist() == oracle().continuations[0][:NEW]
    assert_same_tokens(found, oracle().expected(NEW))
