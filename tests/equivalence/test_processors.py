"""Processors and criteria: exact prefixes, in order, once each, nothing of rejected drafts."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensLogitsProcessor,
    TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from draftproof import Pair, UnsupportedArgumentError
from draftproof.testing import (
    ScriptedDrafter,
    assert_same_tokens,
    noisy_copy,
    random_prompts,
    tiny_model,
    tiny_tokenizer,
)

PROMPTS = random_prompts((4, 11, 2, 7))
NEW = 16
SEEDED = {"temperature": 1.0, "seed": 5}
REJECTION = {"temperature": 1.0, "seed": 5, "coupling": "rejection"}
WAYS = pytest.mark.parametrize(
    "settings", [{}, SEEDED, REJECTION], ids=["greedy", "seeded", "rejection"]
)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    return noisy_copy(target)


class Moody(LogitsProcessor):
    """Keeps state: each call forbids the tokens it favoured two calls ago, and notes its prefix."""

    def __init__(self) -> None:
        self.favoured: list[int] = []
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        self.prefixes.append(input_ids[0].tolist())
        if len(self.favoured) > 1:
            scores[:, self.favoured[-2]] = -torch.inf  # in place: must not reach the raw logits
        self.favoured.append(int(scores.argmax()))
        return scores * (1 + len(self.favoured) % 3)


def plain_theirs(model: Any, prompt: list[int], processor: Any, new: int = NEW) -> list[int]:
    """What transformers generates at batch 1 with the same processor."""
    ids = torch.tensor([prompt])
    config = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0)
    out = model.generate(ids, generation_config=config, logits_processor=[processor])
    return out[0, len(prompt) :].tolist()


def test_a_stateful_processor_gives_what_transformers_gives(target: Any, draft: Any) -> None:
    expected = [plain_theirs(target, prompt, Moody()) for prompt in PROMPTS]
    assert expected != [plain_theirs(target, prompt, Listener()) for prompt in PROMPTS]
    for kind, count in ((None, 0), (draft, 4), (draft, 2), ("ngram", 3)):
        results = Pair(target, kind).generate(
            PROMPTS,
            max_new_tokens=NEW,
            num_speculative_tokens=count,
            logits_processor=LogitsProcessorList([Moody()]),
        )
        assert_same_tokens([result.token_ids for result in results], expected, f"{count}")


@WAYS
def test_prefixes_are_exact_in_order_and_once_each(
    target: Any, draft: Any, settings: dict[str, Any]
) -> None:
    """Prompt + emitted before each position; not a call for a rejected draft or a finished row."""
    own = [[Moody()] for _ in PROMPTS]
    results = Pair(target, draft).generate(
        PROMPTS, max_new_tokens=[3, 16, 9, 12], logits_processor=own, **settings
    )
    for prompt, (processor,), result in zip(PROMPTS, own, results, strict=True):
        ids = prompt + result.token_ids
        assert processor.prefixes == [ids[:end] for end in range(len(prompt), len(ids))]
    assert sum(result.stats.correction_tokens for result in results) > 3


def test_a_row_that_met_its_eos_is_not_called_again(target: Any) -> None:
    """The eos is in the middle of a block whose drafts are all right."""
    right = [result.token_ids for result in Pair(target).generate(PROMPTS, max_new_tokens=NEW)]
    own = [[Listener()] for _ in PROMPTS]
    drafter = ScriptedDrafter(continuations=right, wrong_at=4)
    results = Pair(target, drafter).generate(
        PROMPTS,
        max_new_tokens=NEW,
        eos_token_id=[[ids[3]] for ids in right],
        logits_processor=own,
    )
    for (processor,), result, ids in zip(own, results, right, strict=True):
        assert result.token_ids == ids[: ids.index(ids[3]) + 1]
        assert len(processor.prefixes) == len(result.token_ids)


class Listener(Moody):
    """Notes prefixes and changes nothing."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.prefixes.append(input_ids[0].tolist())
        return scores


@WAYS
def test_one_object_for_all_rows_keeps_rows_apart(
    target: Any, draft: Any, settings: dict[str, Any]
) -> None:
    shared = Moody()
    pair = Pair(target, draft)
    together = pair.generate(PROMPTS, max_new_tokens=NEW, logits_processor=[shared], **settings)
    assert shared.prefixes == []  # each row had a copy of its own
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = Moody()
        expected = pair.generate([prompt], max_new_tokens=NEW, logits_processor=alone, **settings)
        assert result.token_ids == expected[0].token_ids
        assert len(alone.prefixes) == NEW  # the only row used the object itself


class EvenOnly(LogitsProcessor):
    """A toy grammar without state."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        odd = torch.arange(scores.shape[-1]) % 2 == 1
        return scores.masked_fill(odd, -torch.inf)


@WAYS
@pytest.mark.parametrize("kind", ["model", "scripted odd", "ngram"])
def test_every_emitted_token_obeys_bonus_and_correction_too(
    target: Any, draft: Any, settings: dict[str, Any], kind: str
) -> None:
    odd = ScriptedDrafter(continuations=[[2, 4, 1, 3] * 10] * len(PROMPTS), wrong_at=9)
    drafter = {"model": draft, "scripted odd": odd, "ngram": "ngram"}[kind]
    results = Pair(target, drafter).generate(
        PROMPTS, max_new_tokens=NEW, logits_processor=EvenOnly(), **settings
    )
    assert all(token % 2 == 0 for result in results for token in result.token_ids)
    assert sum(result.stats.num_draft_tokens for result in results) > 0


class Grammar(LogitsProcessor):
    """{"key":123} one character at a time, then the end: a state machine fed each token once."""

    def __init__(self, tokenizer: Any, prompt_len: int) -> None:
        self.tokenizer, self.seen, self.text = tokenizer, prompt_len, ""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert input_ids.shape[1] - self.seen in (0, 1)  # never a token skipped or seen twice
        for token in input_ids[0, self.seen :].tolist():
            self.text += self.tokenizer.decode([token])
        self.seen = input_ids.shape[1]
        mask = torch.full_like(scores, -torch.inf)
        mask[:, self._allowed()] = 0
        return scores + mask

    def _allowed(self) -> list[int]:
        letters, digits = "abcdef", "0123456789"
        key = re.fullmatch(r'\{"([a-f]*)', self.text)
        number = re.fullmatch(r'\{"[a-f]+":([0-9]*)', self.text)
        if self.text == "":
            follow = "{"
        elif self.text == "{":
            follow = '"'
        elif key:
            follow = (letters if len(key[1]) < 5 else "") + ('"' if key[1] else "")
        elif number is None:
            follow = ":" if self.text.endswith('"') else ""
        else:
            first = number[1] == "0"
            follow = (digits if len(number[1]) < 4 and not first else "") + (
                "}" if number[1] else ""
            )
        ids = [self.tokenizer.convert_tokens_to_ids(character) for character in follow]
        return ids or [self.tokenizer.eos_token_id]


@WAYS
def test_structured_output_stays_valid(settings: dict[str, Any]) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer))
    eos = tokenizer.eos_token_id
    for kind in (noisy_copy(model, amount=0.05), "ngram"):
        pair = Pair(model, kind, tokenizer=tokenizer)
        grammars = [
            [Grammar(tokenizer, len(pair.encode(text)))] for text in ("a", "some text", "xy")
        ]
        results = pair.generate(
            ["a", "some text", "xy"],
            max_new_tokens=40,
            eos_token_id=eos,
            logits_processor=grammars,
            **settings,
        )
        for result in results:
            assert result.finish_reason == "eos"
            assert set(json.loads(result.text or "")) <= {result.text[2 : result.text.index('":')]}


def test_transformers_own_processors_in_a_list(target: Any, draft: Any) -> None:
    """Stateless ones are not copied, and act in the place that `generate` gives them."""
    suppress = SuppressTokensLogitsProcessor(list(range(0, 101, 3)))
    expected = [plain_theirs(target, prompt, suppress) for prompt in PROMPTS]
    found = Pair(target, draft).generate(PROMPTS, max_new_tokens=NEW, logits_processor=suppress)
    assert_same_tokens([result.token_ids for result in found], expected)


def test_prefix_constraints_know_their_row(target: Any, draft: Any) -> None:
    def allowed(row: int, ids: Tensor) -> list[int]:
        return list(range(10 * row, 10 * row + 10))

    processor = PrefixConstrainedLogitsProcessor(allowed, 1)
    results = Pair(target, draft).generate(PROMPTS, max_new_tokens=6, logits_processor=processor)
    for index, result in enumerate(results):
        assert {token // 10 for token in result.token_ids} == {index}


# -- refusals --------------------------------------------------------------------------------------


def test_a_processor_that_runs_the_model_is_refused_by_name(target: Any) -> None:
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target)
    with pytest.raises(UnsupportedArgumentError, match="UnbatchedClassifierFreeGuidance"):
        Pair(target).generate(PROMPTS, logits_processor=guidance)


def test_a_processor_that_needs_more_arguments_is_refused_by_name(target: Any) -> None:
    class Curious(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor, beams: int) -> Tensor:
            return scores

    with pytest.raises(UnsupportedArgumentError, match="Curious cannot be evaluated per position"):
        Pair(target).generate(PROMPTS, logits_processor=Curious())


def test_a_shared_processor_that_cannot_be_copied_is_refused_by_name(target: Any) -> None:
    class Locked(EvenOnly):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(UnsupportedArgumentError, match="Locked is shared by several rows"):
        Pair(target).generate(PROMPTS, logits_processor=Locked())
    own = [[Locked()] for _ in PROMPTS]
    assert len(Pair(target).generate(PROMPTS, max_new_tokens=2, logits_processor=own)) == 4


# -- stopping criteria -----------------------------------------------------------------------------


def test_criteria_end_the_row_at_the_token_that_meets_them(target: Any, draft: Any) -> None:
    """Seen per emitted token, with the exact ids, and never beyond the end."""
    seen: list[list[int]] = []

    def divisible(ids: Tensor, scores: Any) -> Tensor:
        seen.append(ids[0].tolist())
        return ids[:, -1] % 7 == 0

    plain = [result.token_ids for result in Pair(target).generate(PROMPTS, max_new_tokens=NEW)]
    expected = [
        ids[: next((i for i, token in enumerate(ids) if token % 7 == 0), NEW) + 1] for ids in plain
    ]
    assert any(len(ids) < NEW for ids in expected)
    results = Pair(target, draft).generate(
        PROMPTS, max_new_tokens=NEW, stopping_criteria=StoppingCriteriaList([divisible])
    )
    assert_same_tokens([result.token_ids for result in results], expected)
    assert sorted(map(len, seen)) == sorted(
        len(prompt) + end
        for prompt, ids in zip(PROMPTS, expected, strict=True)
        for end in range(1, len(ids) + 1)
    )


def test_warpers_beyond_our_own_are_called_as_they_are(target: Any, draft: Any) -> None:
    settings = {"max_new_tokens": NEW, "logits_processor": TypicalLogitsWarper(0.5), **SEEDED}
    plain = Pair(target).generate(PROMPTS, **settings)
    found = Pair(target, draft).generate(PROMPTS, **settings)
    assert [r.token_ids for r in found] == [r.token_ids for r in plain]
