"""The user's model stays the user's: it may change, be shared, and is given back as it was."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import draftproof
from draftproof.api import Pair
from draftproof.errors import DraftproofError, InputError, UnsupportedModelError
from draftproof.hf import BoundModel, bound_already
from draftproof.processing import uniform
from draftproof.testing import random_prompts, tiny_model

PROMPTS = random_prompts([5, 9, 17, 30], seed=1)
NEW = 10
NAMES = ["llama", "gpt2", "gemma3_text", "mistral", "qwen3"]


def stock(model: Any, prompts: list[list[int]] = PROMPTS, new: int = NEW) -> list[list[int]]:
    """transformers' own generate, one prompt at a time."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


def ids_of(pair: Pair, prompts: list[list[int]] = PROMPTS, new: int = NEW) -> list[list[int]]:
    results = pair.generate(prompts, max_new_tokens=new, num_speculative_tokens=3)
    return [result.token_ids for result in results]


def trainable(name: str = "llama", seed: int = 1) -> Any:
    return tiny_model(name, seed=seed).requires_grad_(True)


# -- weights that change ---------------------------------------------------------------------------


def train(model: Any) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    ids = torch.tensor([PROMPTS[3]])
    logits = model(ids).logits[0, :-1]
    nn.functional.cross_entropy(logits, ids[0, 1:]).backward()
    optimiser.step()
    model.eval()


def ramp(parameter: torch.Tensor) -> torch.Tensor:
    """Factors that differ from number to number: no norm takes them out again."""
    return torch.linspace(0.5, 1.5, parameter.numel(), dtype=parameter.dtype).view_as(parameter)


def scale(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(ramp(parameter))


def scale_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(ramp(parameter))


def load_another(model: Any) -> None:
    model.load_state_dict(tiny_model(model.config.model_type, seed=7).state_dict())


def replace_parameters(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().roll(1, 0))


def to_float64(model: Any) -> None:
    scale(model.to(torch.float64))


def replace_a_module(model: Any) -> None:
    fresh = nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False)
    with torch.no_grad():
        fresh.weight.copy_(model.lm_head.weight.roll(1, 0))
    model.lm_head = fresh


CHANGES = [
    train,
    scale,
    scale_data,
    load_another,
    replace_parameters,
    to_float64,
    replace_a_module,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_changed_weights_are_taken_over(name: str, change: Callable[[Any], None]) -> None:
    model = trainable(name)
    with Pair(model, "ngram") as pair:
        before = ids_of(pair)
        assert before == stock(model)
        change(model)
        expected = stock(model)
        assert expected != before, "the change must show"
        assert ids_of(pair) == expected
        assert ids_of(pair) == expected


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_loop_of_training_and_generation_follows_every_step(name: str) -> None:
    model, draft = trainable(name), trainable(name, seed=2)
    with Pair(model, draft) as pair:
        seen = []
        for _ in range(5):
            train(model)
            scale(draft)
            seen.append(ids_of(pair))
            assert seen[-1] == stock(model)
    assert len({str(ids) for ids in seen}) > 1


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft's use of transformers
def test_a_merged_adapter_is_taken_over() -> None:
    peft = pytest.importorskip("peft")
    model = trainable()
    with Pair(model) as pair:
        before = ids_of(pair)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_alpha=64)
        adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
        adapted.eval()
        with_adapter = stock(adapted)
        assert with_adapter != before
        assert ids_of(pair) == with_adapter
        merged = adapted.merge_and_unload().eval()
        assert ids_of(pair) == stock(merged)


def test_a_write_that_nothing_shows_is_taken_over_by_refresh() -> None:
    """The limit that the documentation states: `.data`, and none of the sampled numbers."""
    model = trainable()
    with Pair(model) as pair:
        before = ids_of(pair)
        model.lm_head.weight.data[:, 1:-1] *= -1
        pair.refresh()
        assert ids_of(pair) == stock(model) != before


def test_models_made_in_inference_mode_have_no_count_of_writes() -> None:
    with torch.inference_mode():
        model = copy.deepcopy(tiny_model("llama", seed=1))
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.clone(), requires_grad=False)
    with Pair(model) as pair:
        before = ids_of(pair)
        with torch.inference_mode():
            model.lm_head.weight.mul_(-1)
        assert ids_of(pair) == stock(model) != before


def test_dropout_in_training_mode_is_refused() -> None:
    model = tiny_model("gpt2", seed=1, attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1)
    with Pair(model) as pair:
        model.train()
        with pytest.raises(InputError, match=r"call model\.eval\(\)"):
            ids_of(pair)
        model.eval()
        assert ids_of(pair) == stock(model)


# -- given back ------------------------------------------------------------------------------------


def state(model: nn.Module) -> dict[str, Any]:
    """All that can be seen of a model."""
    return {
        "classes": [type(module) for module in model.modules()],
        "attributes": [
            {
                name: value
                for name, value in vars(module).items()
                if not isinstance(value, dict) or name.startswith("_forward")
            }.keys()
            for module in model.modules()
        ],
        "forwards": [vars(module).get("forward") for module in model.modules()],
        "weights": {name: id(p) for name, p in model.named_parameters()},
        "config": str(model.config),
        "attention": model.config._attn_implementation,
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["close", "with", "dropped"])
def test_nothing_is_left_behind(name: str, how: str) -> None:
    model = trainable(name)
    before, values = state(model), {k: v.clone() for k, v in model.state_dict().items()}
    pair = Pair(model, "ngram")
    assert state(model) != before
    ids_of(pair)
    if how == "close":
        pair.close()
        pair.close()  # again does nothing
    elif how == "with":
        with pair:
            pass
    else:
        del pair
        gc.collect()
    assert state(model) == before
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())


def test_a_stream_goes_on_after_its_pair() -> None:
    model = trainable()
    before, expected = state(model), stock(model)
    stream = Pair(model, "ngram").stream(PROMPTS[:1], max_new_tokens=NEW)
    first = next(stream)
    gc.collect()
    assert state(model) != before
    assert [*first.token_ids, *(t for event in stream for t in event.token_ids)] == expected[0]
    del stream
    gc.collect()
    assert state(model) == before


def test_a_model_can_go_after_its_pair() -> None:
    model = trainable()
    pair, gone = Pair(model), weakref.ref(model)
    ids_of(pair)
    del pair, model
    gc.collect()
    assert gone() is None


def test_closing_one_pair_leaves_the_other_of_the_same_model() -> None:
    model = trainable()
    before, expected = state(model), stock(model)
    one, other = Pair(model), Pair(model, "ngram")
    one.close()
    assert ids_of(other) == expected
    scale(model)
    assert ids_of(other) == stock(model)
    other.close()
    assert state(model) == before


def test_a_second_binding_that_goes_leaves_the_first() -> None:
    model = trainable()
    before = state(model)
    one = BoundModel(model)
    BoundModel(model)
    gc.collect()
    assert state(model) != before
    del one
    gc.collect()
    assert state(model) == before


def test_an_engine_goes_on_after_its_pair() -> None:
    model = trainable()
    job = Pair(model, "ngram").prepare(PROMPTS, max_new_tokens=NEW)
    gc.collect()
    for request in job.requests:
        job.engine.add(request)
    rows = {c.row.request.index: c.row.emitted for cs in job.engine.run() for c in cs}
    assert [rows[index] for index in range(len(PROMPTS))] == stock(model)


def test_a_closed_pair_says_so() -> None:
    pair = Pair(trainable())
    running = pair.stream(PROMPTS, max_new_tokens=NEW)
    next(running)
    pair.close()
    for run in (lambda: list(running), lambda: ids_of(pair)):
        with pytest.raises(InputError, match="closed"):
            run()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pair_is_not_copied(duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=r"draftproof\.load"):
        duplicate(Pair(trainable()))


def test_a_copy_of_a_bound_model_is_an_ordinary_model() -> None:
    model = trainable()
    with Pair(model) as pair:
        twin = copy.deepcopy(model)
        scale(twin)
        assert ids_of(pair) == stock(model)
        with Pair(twin) as second:
            assert ids_of(second) == stock(twin) != ids_of(pair)


# -- threads ---------------------------------------------------------------------------------------


def in_threads(calls: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def two_threads(name: str, calls: int, *, one_pair: bool) -> None:
    model = trainable(name)
    expected = stock(model, new=4)
    config = model.config._attn_implementation
    first = Pair(model, "ngram")
    second = first if one_pair else Pair(model)

    def work(pair: Pair) -> None:
        for _ in range(calls):
            assert ids_of(pair, new=4) == expected

    in_threads([lambda: work(first), lambda: work(second)])
    assert model.config._attn_implementation == config


@pytest.mark.parametrize("one_pair", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_two_threads_get_what_one_gets(name: str, one_pair: bool) -> None:
    two_threads(name, 8, one_pair=one_pair)


@pytest.mark.slow
@pytest.mark.parametrize("one_pair", [True, False])
@pytest.mark.parametrize("name", [*NAMES, "opt"])
def test_two_threads_a_hundred_times(name: str, one_pair: bool) -> None:
    two_threads(name, 100, one_pair=one_pair)


def test_streams_of_one_pair_take_turns() -> None:
    model = trainable()
    pair, expected = Pair(model, "ngram"), stock(model)

    def tokens(stream: Iterator[Any], into: list[int]) -> bool:
        event = next(stream, None)
        into += event.token_ids if event is not None else []
        return event is not None

    streams = [pair.stream([prompt], max_new_tokens=NEW) for prompt in PROMPTS]
    found: list[list[int]] = [[] for _ in streams]
    going = [True] * len(streams)
    while any(going):
        going = [tokens(*pair) for pair in zip(streams, found, strict=True)]
    assert found == expected


def test_the_config_is_restored_when_a_forward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trainable()
    own, pair = model.config._attn_implementation, Pair(model)
    bound = pair._target
    assert isinstance(bound, BoundModel)

    def fail(*args: Any, **kwargs: Any) -> None:
        assert model.config._attn_implementation != own
        raise KeyboardInterrupt

    monkeypatch.setattr(BoundModel, "_by_modules", fail)
    monkeypatch.setattr(bound, "stack", None)
    with pytest.raises(KeyboardInterrupt):
        ids_of(pair)
    assert model.config._attn_implementation == own
    monkeypatch.undo()
    assert ids_of(pair) == stock(model)


# -- the state around ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_changes_nothing(name: str, dtype: torch.dtype) -> None:
    model = trainable(name)
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 4, "max_new_tokens": NEW}
    options |= {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {3: 1.5}}
    with Pair(model, "ngram") as pair:
        expected = ids_of(pair), [r.token_ids for r in pair.generate(PROMPTS, **options)]
    torch.set_default_dtype(dtype)
    try:
        with Pair(model, "ngram") as pair:
            found = ids_of(pair), [r.token_ids for r in pair.generate(PROMPTS, **options)]
        assert float(uniform([(1 << 64) - 1], torch.device("cpu"))) < 1
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
    ],
    ids=["autocast", "no_grad", "enable_grad", "inference_mode"],
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_contexts_around_a_call_change_nothing(name: str, context: Callable[[], Any]) -> None:
    model = trainable(name)
    expected = stock(model)
    with context(), Pair(model, "ngram") as pair:
        assert ids_of(pair) == expected
    with Pair(model, "ngram") as pair, context():
        assert ids_of(pair) == expected


# importing the compiler uses what PyTorch itself has deprecated
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_compiles_itself_runs_uncompiled() -> None:
    model = trainable()
    expected = stock(model)
    model.compile()
    with Pair(model) as pair:
        assert ids_of(pair) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (torch.compile, "torch.compile"),
        (lambda model: (model.model.layers[1].compile(), model)[1], "compiled"),
        (lambda model: model.to("meta"), "device meta"),
    ],
    ids=["wrapped", "a layer", "meta"],
)
def test_what_cannot_run_is_refused_by_its_name(spoil: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((InputError, UnsupportedModelError), match=words) as caught:
        Pair(spoil(trainable()))
    assert isinstance(caught.value, DraftproofError)


def test_float64_weights_run_as_they_are() -> None:
    model = trainable().to(torch.float64)
    with Pair(model, "ngram") as pair:
        assert ids_of(pair) == stock(model)


def drop_in(model: Any, **options: Any) -> list[list[int]]:
    """All prompts through `generate`, left-padded."""
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in PROMPTS])
    found = model.generate(
        ids,
        attention_mask=mask,
        custom_generate=draftproof.custom_generate,
        max_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return [row[width:].tolist() for row in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_drop_in_binds_once_and_follows_the_weights(name: str) -> None:
    model, draft = trainable(name), trainable(name, seed=2)
    options = {"assistant_model": draft, "num_speculative_tokens": "auto", "max_num_seqs": 2}
    assert drop_in(model, **options) == stock(model)
    bound, helper = bound_already(model), bound_already(draft)
    assert bound is not None
    assert helper is not None
    (costs,) = bound.companions.values()
    scale(model)
    assert drop_in(model, **options) == stock(model)
    assert bound_already(model) is bound
    assert bound_already(draft) is helper
    assert [*bound.companions.values()] == [costs], "auto-K starts anew in every call"


def test_what_the_drop_in_keeps_goes_with_the_models() -> None:
    model, draft = trainable(), trainable(seed=2)
    drop_in(model, assistant_model=draft)
    bound, gone = bound_already(model), weakref.ref(draft)
    assert bound is not None
    del draft
    gc.collect()
    assert gone() is None, "a target keeps its former draft alive"
    assert len(bound.companions) == 0
    gone = weakref.ref(model)
    del model, bound
    gc.collect()
    assert gone() is None


def test_a_function_called_generate_is_not_taken_for_that_of_transformers() -> None:
    model, other = trainable(), tiny_model("gpt2", seed=3)

    def generate(assistant_model: Any) -> list[list[int]]:
        return drop_in(model)

    assert generate(other) == stock(model)
    assert bound_already(other) is None


def test_a_converted_model_that_changed_is_refused() -> None:
    pytest.importorskip("openvino")
    model = trainable()
    with Pair(model, executor="openvino") as pair:
        assert ids_of(pair) == stock(model)
        scale(model)
        with pytest.raises(InputError, match="changed after OpenVINO converted it"):
            ids_of(pair)


def test_release_gives_back_what_custom_generate_keeps() -> None:
    model = trainable()
    before = state(model)
    ids = torch.tensor([PROMPTS[0]])
    model.generate(ids, custom_generate=draftproof.custom_generate, max_new_tokens=3)
    assert state(model) != before
    draftproof.release(model)
    assert state(model) == before
    draftproof.release(model)  # again does nothing
