"""Which rows run together: the policies of ExSpec, waiting, order of admission, counters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftproof import Pair
from draftproof.batch import Request, Row
from draftproof.engine.grouping import (
    Candidate,
    FirstFull,
    GroupedScheduler,
    Grouping,
    Largest,
    Oldest,
    Policy,
)
from draftproof.reference import reference
from draftproof.testing import ScriptedDrafter, random_prompts, tiny_model


def candidates(states: str, waited: Sequence[int] = ()) -> list[Candidate]:
    """One row per letter; rows of the same letter form a rectangle."""
    waits = list(waited) or [0] * len(states)
    return [
        Candidate(
            row=Row(slot=i, request=Request(index=i, prompt=[1]), tokens=[1]),
            state=(ord(letter),),
            waited=wait,
        )
        for i, (letter, wait) in enumerate(zip(states, waits, strict=True))
    ]


def chosen(policy: Policy, rows: Sequence[Candidate], size: int) -> str:
    picked = policy.choose(rows, size)
    return "".join(f"{chr(item.state[0])}{item.row.slot}" for item in picked)


def test_the_first_full_group_in_request_order() -> None:
    assert chosen(FirstFull(), candidates("abbaba"), 2) == "a0a3"
    assert chosen(FirstFull(), candidates("cbbaba"), 3) == "b1b2b4"


def test_without_a_full_group_the_first_rows_fall_back() -> None:
    assert chosen(FirstFull(), candidates("abcabd"), 3) == "a0b1c2"


def test_fewer_rows_than_a_batch_are_full_when_all_are_equal() -> None:
    assert chosen(FirstFull(), candidates("aa"), 8) == "a0a1"
    assert chosen(FirstFull(), candidates("ab"), 8) == "a0b1"


def test_the_largest_group_need_not_be_full() -> None:
    assert chosen(Largest(), candidates("abbbcd"), 4) == "b1b2b3"
    assert chosen(Largest(), candidates("abbcde"), 4) == "b1b2"
    assert chosen(Largest(), candidates("abcdef"), 4) == "a0b1c2d3"


def test_a_row_that_waited_to_the_limit_runs_without_partners() -> None:
    rows = candidates("abbb", waited=[3, 0, 1, 2])
    assert chosen(Oldest(waiting_limit=3), rows, 2) == "a0b3"
    assert chosen(Oldest(waiting_limit=4), rows, 2) == "b3b2"


def test_rates_of_no_rounds_are_zero() -> None:
    assert (Grouping().grouping_rate, Grouping().fallback_rate) == (0.0, 0.0)
    assert Grouping(grouped=3, fallbacks=1).grouping_rate == 0.75


# -- in a run --------------------------------------------------------------------------------------

LENGTHS = (9, 5, 9, 5, 9, 5, 9, 5)
NEW = 12


def run(wrong_at: int | Sequence[int], **options: object) -> tuple[GroupedScheduler, list[int]]:
    """The scheduler after a run of eight rows, two at a time, and the order in which rows ended."""
    target, prompts = tiny_model("llama"), random_prompts(LENGTHS, seed=2)
    draft = ScriptedDrafter(
        continuations=[reference(target, p, NEW) for p in prompts], wrong_at=wrong_at
    )
    pair = Pair(target, draft, method="exspec", method_options=dict(options))
    job = pair.prepare(prompts, max_new_tokens=NEW, max_num_seqs=2, debug=True)
    for request in job.requests:
        job.engine.add(request)
    ended = [
        commit.row.request.index
        for commits in job.engine.run()
        for commit in commits
        if commit.row.finish_reason is not None
    ]
    scheduler = job.engine.scheduler
    assert isinstance(scheduler, GroupedScheduler)
    return scheduler, ended


def test_equal_rows_that_accept_alike_are_never_realigned() -> None:
    """Four rows of each of two lengths: every round finds two equal ones."""
    scheduler, _ = run(wrong_at=2, window_size=8)
    assert scheduler.grouping.fallbacks == 0
    assert scheduler.grouping.grouped > 0


def test_a_window_as_small_as_the_batch_finds_no_partners() -> None:
    """Lengths 9 and 5 side by side: nothing is equal until a realignment makes it so."""
    scheduler, _ = run(wrong_at=(0, 1, 2, 3, 0, 1, 2, 3), window_size=2)
    assert scheduler.grouping.fallbacks > 0


def test_sorting_admits_short_prompts_first() -> None:
    _, ended = run(wrong_at=2, window_size=2, sort_by_length=True)
    assert {LENGTHS[index] for index in ended[:4]} == {5}
    _, ended = run(wrong_at=2, window_size=2)
    assert {LENGTHS[index] for index in ended[:4]} == {5, 9}


@pytest.mark.parametrize("limit", [1, 3])
def test_no_row_waits_longer_than_the_limit_and_the_pool_allow(limit: int) -> None:
    """Of the pool's eight rows two run at a time: at most three others go first."""
    longest = 0

    class Watched(Oldest):
        def choose(self, candidates: Sequence[Candidate], size: int) -> Sequence[Candidate]:
            nonlocal longest
            longest = max(longest, *(item.waited for item in candidates))
            return super().choose(candidates, size)

    target, prompts = tiny_model("llama"), random_prompts(LENGTHS, seed=2)
    pair = Pair(target, tiny_model("llama", seed=1), method="exspec")
    job = pair.prepare(prompts, max_new_tokens=NEW, max_num_seqs=2)
    scheduler = job.engine.scheduler
    assert isinstance(scheduler, GroupedScheduler)
    scheduler.policy = Watched(waiting_limit=limit)
    for request in job.requests:
        job.engine.add(request)
    for _ in job.engine.run():
        pass
    assert limit <= longest <= limit + 3
