"""`model.generate(..., custom_generate=...)` against `model.generate(...)` at batch 1."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
    TextIteratorStreamer,
    TopKLogitsWarper,
)

from draftproof import Pair, UnsupportedArgumentError, custom_generate
from draftproof.dropin.processors import Context, read
from draftproof.dropin.returning import Columns
from draftproof.testing import noisy_copy, random_prompts, tiny_model, tiny_tokenizer
from draftproof.types import StreamEvent

PROMPTS = [[token + 1 for token in prompt] for prompt in random_prompts((6, 11, 3), vocab_size=99)]
NEW = 14
PAD = 0
# one row's logits come from forwards of different shapes: float32 rounding
TOLERANCE = {"atol": 2e-5, "rtol": 0}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return noisy_copy(target)


def padded(prompts: list[list[int]]) -> dict[str, Tensor]:
    width = max(map(len, prompts))
    ids = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def generate(model: Any, prompts: list[list[int]], **options: Any) -> Any:
    defaults = {"max_new_tokens": NEW, "pad_token_id": PAD, "do_sample": False}
    return model.generate(**padded(prompts), **(defaults | options))


GREEDY: dict[str, dict[str, Any]] = {
    "nothing": {},
    "our own stages": {
        "sequence_bias": {(4,): 2.0, (3, 8): 5.0},
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[5], [6, 7], [3, 9, 4]],
        "min_new_tokens": 5,
        "eos_token_id": [11, 40],
    },
    "stages of transformers only": {
        "exponential_decay_length_penalty": (3, 1.5),
        "suppress_tokens": [4, 5],
        "begin_suppress_tokens": [1, 2],
        "forced_eos_token_id": 11,
        "eos_token_id": 11,
        "remove_invalid_values": True,
        "renormalize_logits": True,
        "repetition_penalty": 1.2,
    },
    "a constraint": {
        "prefix_allowed_tokens_fn": lambda row, ids: list(range(20 + int(ids[-1]) % 9))
    },
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_is_generates(target: Any, draft: Any, name: str) -> None:
    options = GREEDY[name] | {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    for prompt in PROMPTS:
        expected = generate(target, [prompt], **options)
        for extra in ({"assistant_model": draft}, {"prompt_lookup_num_tokens": 3}, {}):
            found = generate(target, [prompt], custom_generate=custom_generate, **options, **extra)
            assert found.sequences.tolist() == expected.sequences.tolist()
            for ours, theirs in ((found.scores, expected.scores), (found.logits, expected.logits)):
                assert len(ours) == len(theirs)
                for one, two in zip(ours, theirs, strict=True):
                    assert torch.equal(one.isinf(), two.isinf())
                    finite = one.isfinite()
                    assert torch.allclose(one[finite], two[finite], **TOLERANCE)


@pytest.mark.parametrize("name", GREEDY)
def test_padded_rows_are_what_each_is_alone(target: Any, draft: Any, name: str) -> None:
    """Processors that count positions count the padding in `generate`; so do they here."""
    if name == "stages of transformers only":
        pytest.skip("their start is counted with the padding: compared in the next test")
    together = generate(
        target, PROMPTS, custom_generate=custom_generate, assistant_model=draft, **GREEDY[name]
    )
    for row, prompt in enumerate(PROMPTS):
        alone = generate(target, [prompt], **GREEDY[name])[0, len(prompt) :].tolist()
        ours = together[row, max(map(len, PROMPTS)) :].tolist()
        assert ours[: len(alone)] == alone
        assert set(ours[len(alone) :]) <= {PAD}


def test_padded_rows_are_generates_own_batch(target: Any, draft: Any) -> None:
    # older releases penalise the pad id in padded rows; here padding is never part of a row
    options = GREEDY["stages of transformers only"] | {"repetition_penalty": 1.0}
    expected = generate(target, PROMPTS, **options)
    found = generate(
        target, PROMPTS, custom_generate=custom_generate, assistant_model=draft, **options
    )
    assert found.tolist() == expected.tolist()


def test_a_users_processor_sees_the_padding_and_keeps_rows_apart(target: Any, draft: Any) -> None:
    class Alternating(LogitsProcessor):
        """Forbids what it saw chosen before, by its own count of calls."""

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.calls += 1
            assert input_ids.shape[1] == max(map(len, PROMPTS)) + self.calls - 1
            return scores + (torch.arange(scores.shape[1]) % (2 + self.calls % 2) == 0) * 3.0

    expected = generate(target, PROMPTS, logits_processor=[Alternating()])
    found = generate(
        target,
        PROMPTS,
        logits_processor=[Alternating()],
        custom_generate=custom_generate,
        assistant_model=draft,
    )
    assert found.tolist() == expected.tolist()


def test_sampling_is_the_python_doors(target: Any, draft: Any) -> None:
    options = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    found = generate(
        target, PROMPTS, custom_generate=custom_generate, assistant_model=draft, seed=4, **options
    )
    results = Pair(target).generate(PROMPTS, max_new_tokens=NEW, seed=4, **options)
    width = max(map(len, PROMPTS))
    assert found[:, width:].tolist() == [result.token_ids for result in results]


def test_sampling_without_a_seed_follows_torch(target: Any, draft: Any) -> None:
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(
            generate(
                target,
                PROMPTS,
                do_sample=True,
                custom_generate=custom_generate,
                assistant_model=draft,
            ).tolist()
        )
    assert runs[0] == runs[1] != runs[2]


def test_several_sequences_per_prompt(target: Any) -> None:
    found = generate(
        target,
        PROMPTS,
        do_sample=True,
        num_return_sequences=3,
        seed=1,
        custom_generate=custom_generate,
    )
    results = Pair(target).generate(
        PROMPTS, max_new_tokens=NEW, do_sample=True, top_k=50, num_return_sequences=3, seed=1
    )
    width = max(map(len, PROMPTS))
    assert found[:, width:].tolist() == [result.token_ids for result in results]
    assert len({tuple(row) for row in found.tolist()}) == 9


def test_scores_of_ended_rows_say_pad(target: Any, draft: Any) -> None:
    plain = generate(target, PROMPTS)
    width = max(map(len, PROMPTS))
    eos = [int(plain[0, width + 3]), int(plain[1, width + 6])]
    out = generate(
        target,
        PROMPTS,
        eos_token_id=eos,
        return_dict_in_generate=True,
        output_scores=True,
        custom_generate=custom_generate,
        assistant_model=draft,
    )
    assert len(out.scores) == out.sequences.shape[1] - width
    assert out.logits is None
    transition = target.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    ended = out.sequences[0, width:].tolist().index(eos[0]) + 1
    assert (transition[0, ended:] == 0).all()
    assert (transition[0, :ended] < 0).all()


# -- streamers and criteria ------------------------------------------------------------------------


class Collector:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.columns: list[list[int]] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        assert self.ended == 0
        if value.ndim == 1:  # the prompt is put as [B, L]
            self.columns.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("count", [1, 3])
def test_streamers_get_what_generate_gives_them(target: Any, draft: Any, count: int) -> None:
    ours, theirs = Collector(), Collector()
    plain = generate(target, PROMPTS[:count])
    options = {"eos_token_id": int(plain[0, -8])}
    expected = generate(target, PROMPTS[:count], streamer=theirs, **options)
    found = generate(
        target,
        PROMPTS[:count],
        streamer=ours,
        custom_generate=custom_generate,
        assistant_model=draft,
        **options,
    )
    assert found.tolist() == expected.tolist()
    assert ours.columns == theirs.columns
    assert ours.ended == theirs.ended == 1
    new = found[:, max(map(len, PROMPTS[:count])) :]
    assert torch.tensor(ours.columns).T.tolist() == new.tolist()


def test_text_streamers_give_the_text(draft: Any) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer))
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    ids = generate(
        model, [tokenizer("hello")["input_ids"]], streamer=streamer, custom_generate=custom_generate
    )
    assert "".join(streamer) == tokenizer.decode(ids[0, 5:], skip_special_tokens=True)


def test_columns_wait_for_the_slowest_row() -> None:
    collector = Collector()
    columns = Columns(streamer=collector, rows=2, pad=9)
    done: Any = object()

    def add(row: int, ids: list[int], result: Any = None) -> None:
        columns.add(row, StreamEvent(index=row, token_ids=ids, text=None, result=result))

    add(0, [1, 2, 3])
    assert collector.columns == []
    add(1, [4, 5])
    assert collector.columns == [[1, 4], [2, 5]]
    add(1, [], done)
    assert collector.columns == [[1, 4], [2, 5], [3, 9]]
    add(0, [6, 7], done)
    assert collector.columns[3:] == [[6, 9], [7, 9]]


def test_criteria_end_each_row(target: Any, draft: Any) -> None:
    class EndsOn(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return input_ids[:, -1] % 5 == 0

    # without any eos `generate` lets an ended row run on until all have ended
    options: dict[str, Any] = {"stopping_criteria": [EndsOn()], "eos_token_id": 100}
    expected = generate(target, PROMPTS, **options)
    found = generate(
        target, PROMPTS, custom_generate=custom_generate, assistant_model=draft, **options
    )
    assert found.tolist() == expected.tolist()
    assert found.tolist() != generate(target, PROMPTS).tolist()


def test_stop_strings_of_generate() -> None:
    """`generate` loses the tokenizer that `stop_strings` needs when it calls a custom function, and
    says so; the criterion that it would make can be given instead."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer))
    prompt = tokenizer("hello")["input_ids"]
    plain = generate(model, [prompt])
    text = [token for token in plain[0, 5:].tolist() if token < 128]
    stop = tokenizer.decode(text[:1])
    options = {"stopping_criteria": [StopStringCriteria(tokenizer, [stop])]}
    expected = generate(model, [prompt], **options)
    found = generate(
        model,
        [prompt],
        custom_generate=custom_generate,
        assistant_model=noisy_copy(model),
        **options,
    )
    assert found.tolist() == expected.tolist()
    assert found.shape < plain.shape


# -- refusals and warnings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"guidance_scale": 1.5},
        {"token_healing": True},
    ],
)
def test_what_is_not_done_is_refused_by_name(target: Any, options: dict[str, Any]) -> None:
    with pytest.raises(
        (UnsupportedArgumentError, ValueError), match=next(iter(options)).replace("_", ".")
    ):
        generate(target, PROMPTS[:1], custom_generate=custom_generate, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "temperature": 0.0},
        {"do_sample": True, "temperature": -1.0},
        {"num_return_sequences": 2},
        {"repetition_penalty": -1.0},
        {"bad_words_ids": []},
    ],
)
def test_what_transformers_rejects_is_rejected(target: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="."):
        generate(target, PROMPTS[:1], **options)
    with pytest.raises(ValueError, match="."):
        generate(target, PROMPTS[:1], custom_generate=custom_generate, **options)


def test_values_of_a_whole_batch_are_refused_by_name(target: Any) -> None:
    with pytest.raises(UnsupportedArgumentError, match="EncoderRepetitionPenalty"):
        generate(target, PROMPTS, encoder_repetition_penalty=1.3, custom_generate=custom_generate)
    one = {"encoder_repetition_penalty": 1.3}
    found = generate(target, PROMPTS[:1], custom_generate=custom_generate, **one)
    assert found.tolist() == generate(target, PROMPTS[:1], **one).tolist()


def test_no_warning_of_our_own(target: Any, draft: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(
            target,
            PROMPTS,
            generation_config=GenerationConfig(max_new_tokens=4, pad_token_id=PAD, do_sample=True),
            max_new_tokens=4,
            custom_generate=custom_generate,
            assistant_model=draft,
        )


# -- reading lists of processors -------------------------------------------------------------------


def reading(model: Any, users: list[Any] | None = None, **options: Any) -> Any:
    """How the list that `generate` prepares for these options is read."""
    config = GenerationConfig(eos_token_id=7, **options)
    config._eos_token_tensor = torch.tensor([7])
    prepared = model._get_logits_processor(
        config, input_ids_seq_length=4, logits_processor=users or [], device="cpu", model_kwargs={}
    )
    context = Context(
        padding=[0], pad=PAD, eos=(7,), width=4, sampled=bool(options.get("do_sample"))
    )
    return read(prepared, context)


WARPERS = {"do_sample": True, "temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.1}


def test_known_processors_become_settings(target: Any) -> None:
    found = reading(target, repetition_penalty=1.2, min_new_tokens=3, min_length=9, **WARPERS)
    assert found.others == []
    assert found.options == {
        "repetition_penalty": 1.2,
        "min_new_tokens": 5,
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.8,
        "min_p": 0.1,
    }


def test_the_order_of_the_list_is_kept(target: Any) -> None:
    users = SuppressTokensLogitsProcessor([1])
    between = reading(target, [users], repetition_penalty=1.2, **WARPERS)
    assert between.others == [users]
    assert between.options.keys() == {
        "repetition_penalty",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
    }
    behind = reading(target, repetition_penalty=1.2, typical_p=0.9, **WARPERS)
    assert behind.options == {"repetition_penalty": 1.2}
    assert [type(item).__name__ for item in behind.others] == [
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
    ]


def test_a_warper_given_by_hand_acts_on_greedy_rows_too(target: Any) -> None:
    warper = TopKLogitsWarper(3)
    assert reading(target, [warper]).others == [warper]
