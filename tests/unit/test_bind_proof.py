"""A model that computes something of its own is refused when it is bound, whatever its name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from draftproof import Pair, UnsupportedModelError
from draftproof.executors import proof, trial, walks
from draftproof.executors.choice import bind_part
from draftproof.executors.differing import Rounding, first_difference
from draftproof.executors.layout import RowLayout
from draftproof.executors.proof import prove
from draftproof.hf import BoundModel
from draftproof.hf.listening import Heard
from draftproof.numerics.attention import additive_mask
from draftproof.testing import stock_generate, tiny_model
from draftproof.testing.models import randomise

DTYPES = [torch.float32, torch.bfloat16]
NEWER = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 5)
newer = pytest.mark.skipif(not NEWER, reason="a model type or setting of later releases")


@pytest.fixture(autouse=True)
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    return tmp_path


def doge(*, trained: bool) -> Any:
    """A learned bias within the mask, zero until it is trained."""
    config = AutoConfig.for_model(
        "doge",
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    if trained:
        randomise(model, 0)
    return model


def bidirectional() -> Any:
    model = tiny_model()
    model.config.is_causal = False
    return model


def rope(kind: str, **options: Any) -> dict[str, Any]:
    """Configuration values of a rope scaling, in the names of the installed transformers."""
    scaling = {"rope_type": kind, "factor": 2.0, **options}
    if hasattr(tiny_model().config, "rope_parameters"):  # from 5.0 on
        return {"rope_parameters": {"rope_theta": 10000.0, **scaling}}
    return {"rope_scaling": scaling, "original_max_position_embeddings": 64}


def long_rope() -> Any:
    """Other frequencies for all tokens of a batch once its longest row has 64."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return tiny_model(**rope("longrope", original_max_position_embeddings=64, **factors))


class ShiftedScale(torch.nn.Module):
    """Around a projection of queries: scales by how many forwards there were."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.inner(hidden) * (1 + 0.01 * self.calls)
        return out


def stateful() -> Any:
    model = tiny_model()
    attention = model.model.layers[1].self_attn
    attention.q_proj = ShiftedScale(attention.q_proj)
    return model


OWN: dict[str, tuple[Callable[[], Any], str]] = {
    "bias in the mask": (lambda: doge(trained=True), r"layers\.0\.self_attn\.o_proj"),
    "not causal": (bidirectional, r"layers\.0\.self_attn\.o_proj"),
    "bidirectional": (
        lambda: tiny_model("gemma3_text", use_bidirectional_attention=True),
        r"layers\.0\.self_attn\.o_proj",
    ),
    "state": (stateful, r"layers\.1\.self_attn\.q_proj \(ShiftedScale\)"),
}


@newer
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OWN)
def test_what_is_the_models_own_is_refused_naming_where_it_begins(
    name: str, dtype: torch.dtype
) -> None:
    make, where = OWN[name]
    with pytest.raises(UnsupportedModelError, match=rf"first in model\.{where}"):
        Pair(make().to(dtype), numerics="fast")


def test_a_draft_is_compared_as_well() -> None:
    with pytest.raises(UnsupportedModelError, match="its own generate and rows in a batch"):
        Pair(tiny_model(), stateful(), numerics="fast")


@newer
def test_a_bias_of_zero_is_noticed_when_it_is_trained() -> None:
    model = doge(trained=False)
    bound = bind_part(model, "torch")
    assert isinstance(bound, BoundModel)
    bound.release()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.A.fill_(0.5)
    again = BoundModel(model)
    with pytest.raises(UnsupportedModelError, match="self_attn"):
        prove(again)


# -- lengths ---------------------------------------------------------------------------------------


def test_rows_beyond_a_length_where_they_are_wrong_are_refused_before_work_starts() -> None:
    model = long_rope()
    pair = Pair(model, "ngram", numerics="fast")
    prompt = list(range(1, 41))
    expected = stock_generate(model, prompt, 24)
    results = pair.generate([prompt, [5, 6, 7]], max_new_tokens=24)  # 63 tokens are cached
    assert results[0].token_ids == expected
    assert results[1].token_ids == stock_generate(model, [5, 6, 7], 24)
    with pytest.raises(UnsupportedModelError, match=r"rotary_emb.*more than 64 .*max_model_len=64"):
        pair.generate([prompt], max_new_tokens=30)
    assert len(pair.generate([prompt], max_new_tokens=30, max_model_len=64)[0].token_ids) == 25
    assert "wrong beyond 64 tokens" in pair.describe()["proven"]


def test_a_draft_drafts_no_further_than_it_is_additive_mask() -> None:
    target, draft = tiny_model(seed=1), long_rope()
    pair = Pair(target, draft, numerics="fast")
    job = pair.prepare([list(range(1, 61))], max_new_tokens=20, num_speculative_tokens=3)
    assert job.plan.max_model_len == 79
    assert job.plan.draft_capacity == 64
    (result,) = pair.generate([list(range(1, 61))], max_new_tokens=20, num_speculative_tokens=3)
    assert result.token_ids == stock_generate(target, list(range(1, 61)), 20)


def test_dynamic_frequencies_do_not_change_within_the_context() -> None:
    model = tiny_model(**rope("dynamic"))
    prompts = [list(range(1, 40)), [3, 1, 2]]
    results = Pair(model, "ngram", numerics="fast").generate(prompts, max_new_tokens=20)
    expected = [stock_generate(model, prompt, 20) for prompt in prompts]
    assert [result.token_ids for result in results] == expected


def scaled_by_position() -> Any:
    """Queries are scaled by their position from 64 on; 5.2 took it from the forward's tokens."""
    config = AutoConfig.for_model(
        "ministral3",
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.1,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, 0)
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.skipif("ministral3" not in CONFIG_MAPPING, reason="a type of later releases")
def test_a_scale_by_position_is_right_across_its_length_or_refused() -> None:
    model = scaled_by_position()
    if not NEWER:
        with pytest.raises(UnsupportedModelError, match="self_attn"):
            Pair(model, "ngram", numerics="fast")
        return
    pair = Pair(model, "ngram", numerics="fast")
    prompts = [list(range(1, 49)), list(range(20, 40)), [3, 4, 5]]
    expected = [stock_generate(model, prompt, 40) for prompt in prompts]
    results = pair.generate(prompts, max_new_tokens=40, num_speculative_tokens=3, eos_token_id=())
    assert [result.token_ids for result in results] == expected
    assert pair._target.proven.proof.crossed == (64,)


WINDOWED = {"sliding_window": 30, "layer_types": ["sliding_attention", "full_attention"] * 2}


@pytest.fixture
def window_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: rows see one token more than the window."""
    monkeypatch.setattr(
        "draftproof.executors.layout.additive_mask",
        lambda positions, view, window, *rest: additive_mask(
            positions, view, None if window is None else window + 1, *rest
        ),
    )


def windowed() -> Any:
    return tiny_model("gemma2", num_hidden_layers=4, **WINDOWED)


@pytest.mark.parametrize("affordable", [2e10, 0.0], ids=["in a prompt", "from memory"])
@pytest.mark.usefixtures("window_too_wide")
def test_a_window_is_crossed(affordable: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "AFFORDABLE", affordable)
    found = prove(BoundModel(windowed())).proof
    assert found.crossed == ()
    assert "self_attn.o_proj" in found.wrong[30]


def test_a_window_that_is_right_is_crossed() -> None:
    assert prove(BoundModel(windowed())).proof.crossed == (30,)


def test_a_length_too_long_to_cross_at_once_is_crossed_before_the_first_row_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "MEMORY", 0)
    pair = Pair(windowed(), numerics="fast")
    assert pair._target.proven.proof.crossed == ()
    pair.generate([[1, 2, 3]], max_new_tokens=20)
    assert pair._target.proven.proof.crossed == ()
    pair.generate([[1, 2, 3]], max_new_tokens=40)
    assert pair._target.proven.proof.crossed == (30,)


class ScaledByPlace(torch.nn.Module):
    """Around a projection: tokens from the 40th of a forward on are scaled, whatever their row."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scale = 1 + 0.5 * (torch.arange(hidden.shape[1]) >= 40)
        out: torch.Tensor = self.inner(hidden) * scale[:, None]
        return out


def scaled_by_place() -> Any:
    model = tiny_model()
    model.config.original_max_position_embeddings = 40
    attention = model.model.layers[0].self_attn
    attention.q_proj = ScaledByPlace(attention.q_proj)
    return model


def test_what_counts_the_tokens_of_a_forward_is_refused_for_short_rows_as_well() -> None:
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.self_attn\.q_proj"):
        prove(BoundModel(scaled_by_place()))


def test_a_forward_too_large_to_fill_at_once_is_filled_before_the_first_run_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "AFFORDABLE", 0)
    monkeypatch.setattr(proof, "MEMORY", 0)
    pair = Pair(scaled_by_place(), numerics="fast")
    few = {"max_new_tokens": 8, "max_num_seqs": 2, "num_speculative_tokens": 2}
    pair.generate([[1, 2, 3]], max_num_batched_tokens=30, **few)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.self_attn\.q_proj"):
        pair.generate([[1, 2, 3]], max_num_batched_tokens=64, **few)


# -- it can fail -----------------------------------------------------------------------------------


def shifted_positions(self: RowLayout, device: torch.device) -> torch.Tensor:
    slots = self._on(device).slots
    return slots + (slots > 12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_faults_of_this_package_are_found(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model().to(dtype)
    prove(BoundModel(model), fresh=True)
    monkeypatch.setattr(RowLayout, "positions", shifted_positions)
    with pytest.raises(UnsupportedModelError, match=r"first in model\.rotary_emb"):
        prove(BoundModel(model), fresh=True)


def test_stale_slots_that_are_seen_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(positions: torch.Tensor, view: int, window: int | None, *rest: Any) -> Any:
        return additive_mask(positions + (positions > 0), view, window, *rest)

    monkeypatch.setattr("draftproof.executors.layout.additive_mask", one_more)
    with pytest.raises(UnsupportedModelError, match="o_proj"):
        prove(BoundModel(tiny_model()), fresh=True)


def heard(*values: float) -> Heard:
    run = Heard()
    run.add(("layer", 0), [(0, n) for n in range(len(values))], torch.tensor([values]).T + 1)
    return run


def test_a_router_may_flip_for_one_token_in_16_bits_and_for_none_in_float32() -> None:
    exact, rough = Rounding(tolerance=0.1), Rounding(tolerance=0.1, flips=0.1)
    same, one, two = heard(*[0.0] * 8), heard(*[0.0] * 7, 3.0), heard(*[0.0] * 6, 3.0, 3.0)

    def differs(ours: Heard, rounding: Rounding) -> bool:
        return first_difference(same, ours, {"layer"}, rounding, lambda place: None) is not None

    assert not differs(same, exact)
    assert differs(one, exact)
    assert not differs(one, rough)
    assert differs(two, rough)
    assert differs(heard(*[0.0] * 7, float("nan")), exact)


# -- kept on disk, and nothing left behind ---------------------------------------------------------


def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return compare(*args, **kwargs)

    compare = proof._compare
    monkeypatch.setattr(proof, "_compare", counting)
    return calls


def test_a_proof_is_recalled_for_the_same_model_and_made_again_for_another(
    monkeypatch: pytest.MonkeyPatch, kept_in: Path
) -> None:
    calls = runs(monkeypatch)
    prove(BoundModel(tiny_model()))
    prove(BoundModel(tiny_model()))
    assert len(calls) == 1
    model = tiny_model()
    model.model.layers[1].mlp.up_proj.weight[0, 0] += 0.25
    prove(BoundModel(model))
    assert len(calls) == 2
    model.config.rms_norm_eps = 0.5
    prove(BoundModel(model))
    assert len(calls) == 3
    for file in kept_in.iterdir():
        file.write_text('{"wrong": 3}')
    prove(BoundModel(model))
    assert len(calls) == 4
    with pytest.raises(UnsupportedModelError):
        prove(BoundModel(stateful()))
    with pytest.raises(UnsupportedModelError):
        prove(BoundModel(stateful()))  # a refusal is kept as well
    assert len(calls) == 5


@pytest.mark.parametrize("owned", [False, True])
def test_nothing_is_left_behind(owned: bool) -> None:
    model = tiny_model("gemma3_text").to(torch.bfloat16).train()
    weights = copy.deepcopy(model.state_dict())
    settings, config = copy.deepcopy(model.generation_config), copy.deepcopy(model.config.to_dict())
    bound = BoundModel(model, owned=owned, lone_row=False)
    pointers = [p.data_ptr() for p in model.parameters()]
    prove(bound)
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(layer.dtype is torch.bfloat16 for layer in bound.layers)
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.generation_config.to_dict() == settings.to_dict()
    assert model.config.to_dict() == config
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)


def test_settings_of_the_model_for_generate_do_not_matter() -> None:
    model = tiny_model()
    model.generation_config.update(
        repetition_penalty=1.5,
        do_sample=True,
        temperature=0.6,
        top_k=5,
        eos_token_id=list(range(99)),
    )
    assert prove(BoundModel(model)).proof.tokens == sum(walks.PROMPTS) + 3 * walks.NEW


def test_a_context_shorter_than_the_rows_of_the_proof() -> None:
    assert prove(BoundModel(tiny_model("gpt2", max_position_embeddings=5))).proof.differs is None


def test_few_layers_of_a_deep_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SMALL", 0)
    layers = {"num_hidden_layers": 9, "layer_types": ["sliding_attention", "full_attention"] * 4}
    layers["layer_types"] += ["full_attention"]  # type: ignore[operator]
    bound = BoundModel(tiny_model("gemma3_text", **layers))
    found = prove(bound).proof
    assert found.differs is None
    monkeypatch.setattr(RowLayout, "positions", shifted_positions)
    with pytest.raises(UnsupportedModelError, match="rotary_emb"):
        prove(bound, fresh=True)
