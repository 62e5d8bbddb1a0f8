"""Small things that a caller may hand over: right, or refused with the culprit and the remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

import draftproof
from draftproof import custom_generate
from draftproof.api import Pair
from draftproof.dropin.settings import KNOWN, NEUTRAL
from draftproof.errors import InputError, NumericsError, UnsupportedArgumentError
from draftproof.models import demo_paths
from draftproof.testing import random_prompts, tiny_model

PROMPTS = random_prompts([5, 9], seed=1)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(tiny_model("llama", seed=1), "ngram", numerics="fast")


# -- settings of generate --------------------------------------------------------------------------


def test_every_setting_of_the_installed_transformers_is_known() -> None:
    """A new one must be read, refused, or found to be without effect."""
    fields = {name for name in vars(GenerationConfig()) if not name.endswith("_hash")}
    assert fields - KNOWN == set()


OTHER = {
    "assistant_early_exit": 1,
    "assistant_ensemble_weight": 0.5,
    "cache_implementation": "static",
    "dola_layers": "low",
    "guidance_scale": 2.0,
    "low_memory": True,
    "num_beams": 2,
    "output_attentions": True,
    "output_hidden_states": True,
    "penalty_alpha": 0.6,
    "speculation_type": "anything",
    "token_healing": True,
    "use_mtp": True,
}


@pytest.mark.parametrize("name", sorted(OTHER.keys() & vars(GenerationConfig()).keys()))
def test_settings_that_would_change_the_output_are_refused(name: str) -> None:
    from draftproof.dropin.settings import refuse_settings

    config = GenerationConfig()
    refuse_settings(config)
    setattr(config, name, OTHER[name])
    with pytest.raises(UnsupportedArgumentError, match=name):
        refuse_settings(config)
    assert name in NEUTRAL


def test_an_early_exit_of_the_draft_is_refused_at_the_door() -> None:
    model = tiny_model("llama", seed=1)
    with pytest.raises(UnsupportedArgumentError, match="assistant_early_exit"):
        model.generate(
            torch.tensor(PROMPTS[:1]),
            custom_generate=custom_generate,
            assistant_early_exit=1,
            max_new_tokens=2,
        )


def test_a_setting_of_a_later_release_is_refused() -> None:
    from draftproof.dropin.settings import refuse_settings

    config = GenerationConfig()
    config.sharper_sampling = 3
    with pytest.raises(UnsupportedArgumentError, match="sharper_sampling=3 is not known"):
        refuse_settings(config)


def test_rows_that_end_at_the_context_say_so() -> None:
    model = tiny_model("llama", seed=1, max_position_embeddings=16)
    ids = torch.tensor([random_prompts([14], seed=2)[0]])
    options = {"custom_generate": custom_generate, "pad_token_id": 0}
    with pytest.warns(UserWarning, match=r"context of 16 tokens.*room for 3"):
        found = model.generate(ids, max_new_tokens=8, **options)
    assert found.shape[1] == 17
    assert model.generate(ids, max_new_tokens=3, **options).tolist() == found.tolist()


# -- scores without a token ------------------------------------------------------------------------


class Forbid:
    """Spoils the scores of the second new token."""

    def __init__(self, value: float, everywhere: bool) -> None:
        self.value, self.everywhere, self.calls = value, everywhere, 0

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            scores[:, slice(None) if self.everywhere else slice(7, 8)] = self.value
        return scores


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.8, "coupling": "rejection"}]
)
@pytest.mark.parametrize(("value", "everywhere"), [(float("nan"), False), (-float("inf"), True)])
@pytest.mark.parametrize("drafts", [0, 3])
def test_a_row_without_a_best_token_raises(
    options: dict[str, Any], value: float, everywhere: bool, drafts: int
) -> None:
    model = tiny_model("llama", seed=1)
    draft = tiny_model("llama", seed=2) if drafts else None
    pair = Pair(model, draft, numerics="fast")
    with pytest.raises(NumericsError, match="prompt 1: all scores of new token 1"):
        pair.generate(
            PROMPTS,
            logits_processor=[[], [Forbid(value, everywhere)]],
            max_new_tokens=6,
            num_speculative_tokens=drafts,
            **options,
        )


def test_weights_that_are_nan_raise_for_plain_greedy_rows() -> None:
    model = tiny_model("llama", seed=1)
    pair = Pair(model, "ngram", numerics="fast")
    with torch.no_grad():
        model.lm_head.weight[3, 0] = float("nan")
    with pytest.raises(NumericsError, match="prompt 0"):
        pair.generate(PROMPTS, max_new_tokens=3)


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-31, 1e-20, 1e-6])
def test_tiny_temperatures_are_greedy(pair: Pair, temperature: float) -> None:
    greedy = pair.generate(PROMPTS, max_new_tokens=8)
    cold = pair.generate(PROMPTS, max_new_tokens=8, temperature=temperature, seed=3, top_p=0.9)
    assert [r.token_ids for r in cold] == [r.token_ids for r in greedy]


# -- numbers and prompts ---------------------------------------------------------------------------

WHOLE = [
    "max_new_tokens",
    "min_new_tokens",
    "top_k",
    "no_repeat_ngram_size",
    "logprobs",
    "num_return_sequences",
    "num_speculative_tokens",
    "max_num_speculative_tokens",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "seed",
]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [2.5, 4.0, True, "4", -3])
def test_whole_numbers_are_whole(pair: Pair, name: str, value: Any) -> None:
    if (name, value) in (("seed", -3), ("num_speculative_tokens", "4")):
        return  # a seed may be negative; a word that is none is another error
    with pytest.raises((InputError, UnsupportedArgumentError), match=name):
        pair.generate(PROMPTS, **{"temperature": 0.5, name: value})


@pytest.mark.parametrize("name", ["num_speculative_tokens", "max_num_seqs", "max_model_len"])
def test_none_is_the_default(pair: Pair, name: str) -> None:
    expected = pair.generate(PROMPTS, max_new_tokens=4)
    found = pair.generate(PROMPTS, max_new_tokens=4, **{name: None})
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


def test_whole_numbers_of_numpy_will_do(pair: Pair) -> None:
    expected = pair.generate(PROMPTS, max_new_tokens=4, num_speculative_tokens=2)
    found = pair.generate(PROMPTS, max_new_tokens=np.int64(4), num_speculative_tokens=np.int32(2))
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
@pytest.mark.parametrize("value", ["0.5", float("nan"), True, -1])
def test_numbers_are_numbers(pair: Pair, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        pair.generate(PROMPTS, **{name: value})


@pytest.mark.parametrize("value", ["x", float("nan"), 7, True])
def test_a_threshold_is_a_probability(pair: Pair, value: Any) -> None:
    with pytest.raises(InputError, match="assistant_confidence_threshold"):
        pair.generate(PROMPTS, max_new_tokens=1, assistant_confidence_threshold=value)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (None, "got NoneType"),
        (7, "got int"),
        (b"text", "wrap a single prompt"),
        ("text", "wrap a single prompt"),
        ({"prompt": [1]}, "wrap a single prompt"),
        ([1, 2, 3], "wrap a single prompt"),
        (torch.tensor([1, 2]), "wrap a single prompt"),
        ({(1, 2), (3,)}, "no order"),
        ([None], "prompt 0: got NoneType"),
        ([[1], b"ab"], "prompt 1: got bytes"),
        ([[1], {1, 2}], "prompt 1: got set"),
        ([[1], 5], "prompt 1: got 5"),
    ],
)
def test_what_is_no_list_of_prompts_is_refused(pair: Pair, prompts: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pair.generate(prompts, max_new_tokens=1)


@pytest.mark.parametrize(
    "made",
    [
        lambda: (prompt for prompt in PROMPTS),
        lambda: tuple(map(tuple, PROMPTS)),
        lambda: [np.array(prompt) for prompt in PROMPTS],
        lambda: [torch.tensor(prompt) for prompt in PROMPTS],
    ],
)
def test_prompts_come_in_many_shapes(pair: Pair, made: Callable[[], Any]) -> None:
    expected = pair.generate(PROMPTS, max_new_tokens=3)
    found = pair.generate(made(), max_new_tokens=3)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]


def test_a_draft_that_cannot_draft_is_reported_as_plain() -> None:
    model, draft = (
        tiny_model("llama", seed=1),
        tiny_model("llama", seed=2, max_position_embeddings=16),
    )
    found = Pair(model, draft, numerics="fast").generate(
        random_prompts([5, 40], seed=3), max_new_tokens=4
    )
    assert found[0].mode == "speculative"
    assert found[1].mode == "plain: the draft's context of 16 tokens holds no prompt of 40"
    assert found[1].stats.num_draft_tokens == 0


def test_defaults_of_a_checkpoint_are_named_and_not_applied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, _ = demo_paths()
    folder = tmp_path / "with defaults"
    shutil.copytree(target, folder)
    settings = {"repetition_penalty": 1.1, "temperature": 0.6, "top_k": 20, "do_sample": True}
    own = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(own | settings))
    plain = draftproof.load(target, dtype="float32", numerics="fast")
    assert plain.describe()["defaults_not_applied"] == {}
    assert not caplog.records
    pair = draftproof.load(folder, dtype="float32", numerics="fast")
    assert pair.describe()["defaults_not_applied"] == settings
    assert "repetition_penalty=1.1" in caplog.text
    found = pair.generate(["A list is"], max_new_tokens=12)
    assert found[0].token_ids == plain.generate(["A list is"], max_new_tokens=12)[0].token_ids


def test_a_draft_with_a_short_context_drafts_up_to_its_end() -> None:
    model = tiny_model("llama", seed=1)
    draft = tiny_model("llama", seed=1, max_position_embeddings=24)
    prompts = random_prompts([18, 21, 23], seed=6)
    options: dict[str, Any] = {"max_new_tokens": 14, "num_speculative_tokens": 8}
    found = Pair(model, draft, numerics="fast").generate(prompts, **options)
    plain = Pair(model, numerics="fast").generate(prompts, max_new_tokens=14)
    assert [r.token_ids for r in found] == [r.token_ids for r in plain]
    assert found[0].stats.num_draft_tokens > 0
