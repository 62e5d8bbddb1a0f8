"""Scores, logits, log-probabilities and streams: those of plain decoding, whatever was drafted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof import InputError, Pair, Result
from draftproof.logprobs import chat_logprobs, completion_logprobs, token_bytes
from draftproof.reference import next_logits
from draftproof.testing import (
    ScriptedDrafter,
    noisy_copy,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
)

PROMPTS = random_prompts((4, 21, 2, 9))
NEW = 12
# one row's logits come from forwards of different shapes: float32 rounding of sums of 32 terms
TOLERANCE = {"atol": 2e-5, "rtol": 0}
ALL = {"output_scores": True, "output_logits": True, "logprobs": 3, "prompt_logprobs": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, penalised": {"repetition_penalty": 1.3, "min_new_tokens": 4, "eos_token_id": [5, 6]},
    "seeded": {"temperature": 0.8, "top_k": 20, "seed": 2},
}


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return noisy_copy(target)


def assert_same_values(found: Result, expected: Result) -> None:
    assert found.token_ids == expected.token_ids
    assert found.numerics == expected.numerics
    tolerance = 0.0 if found.numerics == "exact" else 2e-5
    for one, two in ((found.scores, expected.scores), (found.logits, expected.logits)):
        assert one is not None
        assert two is not None
        assert one.shape == two.shape == (len(found.token_ids), 101)
        assert torch.equal(one.isinf(), two.isinf())
        assert torch.allclose(one[one.isfinite()], two[two.isfinite()], atol=tolerance, rtol=0)
    for ours, theirs in (
        (found.logprobs, expected.logprobs),
        (found.prompt_logprobs, expected.prompt_logprobs),
    ):
        assert ours is not None
        assert theirs is not None
        assert len(ours) == len(theirs)
        for one_token, two_token in zip(ours, theirs, strict=True):
            if one_token is None or two_token is None:
                assert one_token is two_token is None
                continue
            assert one_token.token_id == two_token.token_id
            assert abs(one_token.logprob - two_token.logprob) <= tolerance
            assert [t.token_id for t in one_token.top] == [t.token_id for t in two_token.top]


@pytest.mark.parametrize("name", SETTINGS)
def test_values_are_plains_to_the_bit_where_numerics_are_exact(
    target: Any, draft: Any, name: str
) -> None:
    settings = SETTINGS[name] | ALL | {"max_new_tokens": NEW}
    plain = Pair(target).generate(PROMPTS, max_num_seqs=1, **settings)
    for count, rows, chunk in ((4, 4, 512), (2, 3, 17)):
        found = Pair(target, draft).generate(
            PROMPTS,
            num_speculative_tokens=count,
            max_num_seqs=rows,
            max_num_batched_tokens=chunk,
            **settings,
        )
        for ours, theirs in zip(found, plain, strict=True):
            assert_same_values(ours, theirs)


@pytest.mark.parametrize("name", SETTINGS)
def test_values_are_the_references(target: Any, draft: Any, name: str) -> None:
    """Raw logits are the model's own, unprocessed; log-probabilities are theirs."""
    for result in Pair(target, draft).generate(
        PROMPTS, max_new_tokens=NEW, **SETTINGS[name], **ALL
    ):
        assert result.logits is not None
        assert result.scores is not None
        assert result.logprobs is not None
        assert result.prompt_logprobs is not None
        ids = PROMPTS[result.index] + result.token_ids
        start = len(PROMPTS[result.index])
        entries = [*result.prompt_logprobs, *result.logprobs]
        for place in range(1, len(ids)):
            raw = next_logits(target, ids[:place])
            logprobs = raw.log_softmax(-1)
            entry = entries[place]
            assert entry is not None
            assert entry.token_id == ids[place]
            assert entry.logprob == pytest.approx(float(logprobs[ids[place]]), abs=2e-5)
            assert entry.rank == int((logprobs > logprobs[ids[place]]).sum()) + 1
            assert len(entry.top) == (3 if place >= start else 2)
            assert entry.top[0].logprob == pytest.approx(float(logprobs.max()), abs=2e-5)
            if place >= start:
                assert torch.allclose(result.logits[place - start], raw, **TOLERANCE)
        if name == "seeded":
            assert (result.scores.isfinite().sum(-1) == 20).all()
        elif name == "greedy":
            assert torch.equal(result.scores, result.logits)
        else:
            assert not torch.equal(result.scores, result.logits)
            assert result.scores[:4, [5, 6]].isneginf().all()


def test_rows_record_only_what_they_asked_for(target: Any, draft: Any) -> None:
    results = Pair(target, draft).generate(
        PROMPTS[:3],
        max_new_tokens=[5, 0, 7],
        logprobs=[0, 2, None],
        output_scores=[False, True, True],
        output_logits=[True, False, False],
        prompt_logprobs=[None, 1, None],
    )
    first, second, third = results
    assert first.logprobs is not None
    assert [entry.top for entry in first.logprobs] == [()] * 5
    assert first.scores is None
    assert first.logits is not None
    assert first.prompt_logprobs is None
    assert second.logprobs == []
    assert second.scores is not None
    assert second.scores.shape == (0, 101)
    assert second.prompt_logprobs is not None
    assert len(second.prompt_logprobs) == len(PROMPTS[1])
    assert third.logprobs is third.logits is None
    assert third.scores is not None
    assert len(third.scores) == 7


def test_recording_changes_no_token(target: Any, draft: Any) -> None:
    pair = Pair(target, draft)
    for settings in SETTINGS.values():
        bare = pair.generate(PROMPTS, max_new_tokens=NEW, **settings)
        full = pair.generate(PROMPTS, max_new_tokens=NEW, **settings, **ALL)
        assert [r.token_ids for r in bare] == [r.token_ids for r in full]


def test_a_cut_row_keeps_values_of_its_own_tokens_only(target: Any) -> None:
    """An eos in the middle of an accepted block."""
    right = Pair(target).generate(PROMPTS, max_new_tokens=NEW)
    eos = [[result.token_ids[5]] for result in right]
    results = Pair(target, tiny_model()).generate(
        PROMPTS, max_new_tokens=NEW, eos_token_id=eos, output_scores=True, logprobs=1
    )
    for result in results:
        assert len(result.token_ids) <= 6
        assert result.scores is not None
        assert result.logprobs is not None
        assert len(result.scores) == len(result.logprobs) == len(result.token_ids)
        assert result.scores.argmax(-1).tolist() == result.token_ids


# -- text ------------------------------------------------------------------------------------------

TEXTS = ["héllo wörld", "日本語のテキスト", "plain", "🙂🙃 ok"]


@pytest.fixture(scope="module")
def talkers() -> Pair:
    tokenizer = tiny_tokenizer(merges=[("h", "e"), ("l", "o")])
    model = tiny_model(vocab_size=len(tokenizer))
    return Pair(model, noisy_copy(model), tokenizer=tokenizer)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.5, "seed": 1}], ids=["greedy", "seeded"]
)
def test_streams_put_together_are_the_results(talkers: Pair, settings: dict[str, Any]) -> None:
    options = {"max_new_tokens": 24, "logprobs": 1, "max_num_seqs": 2, **settings}
    ids: dict[int, list[int]] = {index: [] for index in range(4)}
    texts = dict.fromkeys(range(4), "")
    entries: dict[int, list[Any]] = {index: [] for index in range(4)}
    finals = {}
    for event in talkers.stream(TEXTS, **options):
        assert event.index not in finals
        ids[event.index] += event.token_ids
        texts[event.index] += event.text or ""
        entries[event.index] += event.logprobs or []
        if event.result is not None:
            finals[event.index] = event.result
    for result in talkers.generate(TEXTS, **options):
        assert ids[result.index] == result.token_ids == finals[result.index].token_ids
        assert texts[result.index] == result.text
        assert entries[result.index] == result.logprobs


def test_streamed_text_never_splits_a_character(talkers: Pair) -> None:
    """The model is made to write a text whose characters have one to four tokens."""
    text = "né 日本 🙂🙃!"
    script = talkers.tokenizer(text)["input_ids"]
    assert len(script) > len(text)

    def write(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[0, script[ids.shape[1] - 1]] = 0
        return forced

    right = ScriptedDrafter(continuations=[script], wrong_at=2)
    pair = Pair(talkers._target.model, right, tokenizer=talkers.tokenizer)
    events = list(pair.stream(["x"], max_new_tokens=len(script), logits_processor=write))
    assert len(events) > 3
    assert all("\ufffd" not in (event.text or "") for event in events)
    assert "".join(event.text or "" for event in events) == text


def test_openai_shapes(talkers: Pair) -> None:
    result = talkers.generate(
        ["hello"], max_new_tokens=6, logprobs=2, prompt_logprobs=2, eos_token_id=None
    )[0]
    assert result.logprobs is not None
    assert result.prompt_logprobs is not None
    content = chat_logprobs(result.logprobs)["content"]
    assert len(content) == 6
    for entry, token in zip(content, result.token_ids, strict=True):
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["token"] == talkers.tokenizer.decode([token])
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 2
    whole = bytes(byte for entry in content for byte in entry["bytes"])
    assert whole.decode(errors="replace") == talkers.tokenizer.decode(result.token_ids)
    echoed = completion_logprobs([*result.prompt_logprobs, *result.logprobs])
    assert echoed.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert echoed["token_logprobs"][0] is None
    assert echoed["text_offset"][0] == 0
    assert all(len(values) == result.prompt_len + 6 for values in echoed.values())


def test_bytes_of_a_part_of_a_character(talkers: Pair) -> None:
    tokenizer = talkers.tokenizer
    ids = tokenizer("語🙂h")["input_ids"]
    assert len(ids) == 8
    parts = [token_bytes(tokenizer, token, tokenizer.decode([token])) for token in ids]
    assert bytes(byte for part in parts for byte in part or ()) == "語🙂h".encode()


def test_a_wrong_number_of_logprobs_is_refused(target: Any) -> None:
    with pytest.raises(InputError, match="logprobs must be none, 0 or more, got -1"):
        Pair(target).generate(PROMPTS, logprobs=-1)
