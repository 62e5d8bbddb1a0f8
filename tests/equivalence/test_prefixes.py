"""Prompts that begin alike are read once, and every row still gets its own tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftproof.errors import InvariantError
from draftproof.executors.rows import RowsExecutor
from draftproof.prefixes import WORTH_COPYING, WORTH_WAITING
from draftproof.testing import assert_same_tokens, random_prompts
from draftproof.testing.engines import Recorder, prepared
from draftproof.types import RaggedTokens, Result

from .subjects import near_copy, oracle, pair

SYSTEM, OTHER = random_prompts([90, 90], seed=3)
TAILS = random_prompts([1, 5, 9, 40, 2, 7], seed=4)
TOGETHER = [SYSTEM + tail for tail in TAILS]
NEW = 12


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that every forward was fed."""
    counts: list[int] = []
    plain = RowsExecutor.forward

    def noting(self: RowsExecutor, tokens: RaggedTokens) -> Any:
        counts.append(len(tokens.ids))
        return plain(self, tokens)

    monkeypatch.setattr(RowsExecutor, "forward", noting)
    return counts


def subject(kind: str, name: str = "llama") -> Any:
    """A pair whose drafts are of this kind."""
    draft = near_copy(name) if kind == "model" else "ngram" if kind == "ngram" else None
    return pair(oracle(name).model, draft)


def alone(subject: Any, prompts: list[list[int]]) -> list[Result]:
    """Each prompt in a call of its own."""
    return [subject.generate([prompt], max_new_tokens=NEW)[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_share_a_prefix_get_the_tokens_that_they_get_alone(
    name: str, kind: str, rows: int
) -> None:
    both = subject(kind, name)
    prompts = [TOGETHER[0], OTHER, *TOGETHER[1:], OTHER[:50], SYSTEM]
    expected = alone(both, prompts)
    for debug in (False, True):
        found = both.generate(prompts, max_new_tokens=NEW, max_num_seqs=rows, debug=debug)
        assert_same_tokens([r.token_ids for r in found], [r.token_ids for r in expected])
        assert sum(result.num_cached_tokens > 0 for result in found) >= 3


@pytest.mark.parametrize("chunk", [33, 64, 512])
def test_what_is_shared_is_read_once(fed: list[int], chunk: int) -> None:
    both = subject("none")
    fed.clear()  # a few tokens were fed when it was made ready
    both.generate(TOGETHER, max_new_tokens=1, max_num_seqs=6, max_num_batched_tokens=chunk)
    shared = sum(fed)
    assert shared == len(SYSTEM) + sum(map(len, TAILS))
    fed.clear()
    options = {"max_num_batched_tokens": chunk, "enable_prefix_caching": False}
    both.generate(TOGETHER, max_new_tokens=1, max_num_seqs=6, **options)
    assert sum(fed) == sum(map(len, TOGETHER))


def test_the_draft_model_reads_it_once_too(fed: list[int]) -> None:
    both = subject("model")
    fed.clear()
    both.generate(TOGETHER, max_new_tokens=3, max_num_seqs=6)
    once = sum(fed)
    fed.clear()
    both.generate(TOGETHER, max_new_tokens=3, max_num_seqs=6, enable_prefix_caching=False)
    assert sum(fed) - once == 2 * len(SYSTEM) * (len(TOGETHER) - 1)


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
@pytest.mark.parametrize("cut", [1, 4, 11])
def test_a_conversation_goes_on_from_what_a_finished_row_left(kind: str, cut: int) -> None:
    """The rejected drafts of the last round lie behind it, at positions that the next turn has."""
    both = subject(kind)
    (first,) = alone(both, [SYSTEM])
    turn = SYSTEM + first.token_ids[:cut] + TAILS[3]
    (expected,) = alone(both, [turn])
    found = both.generate([SYSTEM, turn], max_new_tokens=NEW, max_num_seqs=1)[1]
    assert found.token_ids == expected.token_ids
    assert len(SYSTEM) <= found.num_cached_tokens <= len(SYSTEM) + cut


def test_rejected_drafts_are_not_taken_for_the_tokens_that_replaced_them() -> None:
    """Rows that end with a correction: where it belongs, the cache holds the rejected draft."""
    both, ends = subject("model"), range(2, NEW)
    prompts = [SYSTEM, OTHER, *TOGETHER]
    firsts = [result.token_ids for result in alone(both, prompts)]
    chats = [
        (prompt, first[end], prompt + first[: first.index(first[end]) + 1] + TAILS[3])
        for prompt, first in zip(prompts, firsts, strict=True)
        for end in ends
    ]
    options = {"max_new_tokens": NEW, "max_num_seqs": 1}
    found = [
        both.generate([prompt, turn], eos_token_id=[[end], None], **options)[1].token_ids
        for prompt, end, turn in chats
    ]
    assert found == [result.token_ids for result in alone(both, [turn for *_, turn in chats])]


# -- slots that change hands -----------------------------------------------------------------------

GROUPS = {
    "two groups": [SYSTEM] * 4 + [OTHER] * 4,
    "short beginnings": [OTHER[:cut] + tail for cut in (17, 20, 63, 65) for tail in TAILS[:3]],
    "in turn": [start + tail for tail in TAILS for start in (SYSTEM, OTHER)],
    "one after the other": [start[:40] + tail for start in (SYSTEM, OTHER) for tail in TAILS],
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("kind", "rows"), [("none", 2), ("ngram", 3), ("model", 8), ("none", 8)])
def test_slots_that_are_freed_together_hold_what_was_there_before(
    group: str, kind: str, rows: int
) -> None:
    """Rows that end in one round: those that take over the slots have not written there yet."""
    both, prompts = subject(kind), GROUPS[group]
    expected = [result.token_ids for result in alone(both, prompts)]
    found = both.generate(prompts, max_new_tokens=NEW, max_num_seqs=rows)
    assert [result.token_ids for result in found] == expected


@pytest.mark.parametrize("debug", [False, True])
def test_sequences_of_two_prompts_through_rows_freed_together(debug: bool) -> None:
    both = subject("ngram")
    options = {"do_sample": True, "seed": 3, "num_return_sequences": 8, "max_new_tokens": NEW}
    single = [r for p in (SYSTEM, OTHER) for r in both.generate([p], max_num_seqs=1, **options)]
    found = both.generate([SYSTEM, OTHER], max_num_seqs=8, debug=debug, **options)
    assert [r.token_ids for r in found] == [r.token_ids for r in single]


@pytest.mark.parametrize(("kind", "rows"), [("none", 1), ("ngram", 2), ("model", 3), ("none", 8)])
def test_debugging_takes_the_same_decisions(kind: str, rows: int) -> None:
    """Every round of a run with poisoned slots is the round of production."""
    both = subject(kind)
    runs = []
    for debug in (False, True):
        recorder = Recorder()
        found = both.generate(
            [*GROUPS["in turn"], *GROUPS["two groups"]],
            max_new_tokens=NEW,
            max_num_seqs=rows,
            num_speculative_tokens=3,
            observers=[recorder],
            debug=debug,
        )
        runs.append((recorder.events, [r.num_cached_tokens for r in found]))
    assert runs[0] == runs[1]


def test_a_copy_of_anything_else_is_refused() -> None:
    """In production: the memory compares what it is asked to copy with what it holds."""
    executor = prepared(subject("none"), [SYSTEM, OTHER], max_num_seqs=2).target
    assert isinstance(executor, RowsExecutor)
    executor.forward(flat(SYSTEM, row=0))
    executor.release(0)
    assert executor.longest_prefix([*SYSTEM[:30], 1, 2], 1) == (0, 30)
    wrong = [*SYSTEM[:20], SYSTEM[20] + 1, *SYSTEM[21:30]]
    for tokens in (wrong, [*SYSTEM, 1]):
        with pytest.raises(InvariantError, match="row 0 does not hold"):
            executor.copy_prefix(0, 1, tokens)
    executor.copy_prefix(0, 1, SYSTEM[:30])
    assert executor.lengths == [0, 30]
    executor.forward(flat(OTHER[:5], row=0))  # row 0 changes hands
    assert executor.longest_prefix(SYSTEM, 0) == (1, 30)


def test_a_forward_that_fails_leaves_nothing_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = prepared(subject("none"), [SYSTEM, OTHER], max_num_seqs=2).target
    assert isinstance(executor, RowsExecutor)
    executor.forward(flat(SYSTEM[:50], row=0))

    def fail(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(executor.model, "forward", fail)
    executor.release(0)
    with pytest.raises(MemoryError):
        executor.forward(flat(OTHER[:20], row=0))
    assert executor.longest_prefix(SYSTEM, 1)[1] == 0


def flat(tokens: list[int], row: int) -> RaggedTokens:
    """A whole prompt for one row."""
    count = len(tokens)
    return RaggedTokens(ids=torch.tensor(tokens), rows=[row], starts=[0], counts=[count], keep=[1])


def test_log_probabilities_of_a_prompt_are_computed_for_its_own_row() -> None:
    both = subject("none")
    found = both.generate(TOGETHER, max_new_tokens=2, max_num_seqs=3, prompt_logprobs=1)
    assert all(result.num_cached_tokens == 0 for result in found)
    assert all(len(result.prompt_logprobs or ()) == result.prompt_len for result in found)


@pytest.mark.parametrize("common", [WORTH_COPYING - 1, WORTH_COPYING, WORTH_WAITING])
def test_short_prefixes_are_read_again(common: int) -> None:
    prompts = [SYSTEM[:common] + [tail[0], *tail] for tail in TAILS[:2]]
    prompts[0][common], prompts[1][common] = 1, 2
    found = subject("none").generate(prompts, max_new_tokens=3, max_num_seqs=1)
    assert found[1].num_cached_tokens == (common if common >= WORTH_COPYING else 0)


def test_seeded_samples_of_one_prompt_share_it() -> None:
    both = subject("none")
    options = {"do_sample": True, "seed": 5, "num_return_sequences": 4, "max_new_tokens": NEW}
    shared = both.generate([SYSTEM], max_num_seqs=4, **options)
    apart = both.generate([SYSTEM], max_num_seqs=4, enable_prefix_caching=False, **options)
    assert [r.token_ids for r in shared] == [r.token_ids for r in apart]
    assert [r.num_cached_tokens for r in shared] == [0, *[len(SYSTEM) - 1] * 3]
