"""Who is admitted, who runs, and how many tokens each row feeds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftproof.batch import Batch, Request, Row
from draftproof.drafters import NgramDrafter
from draftproof.engine.scheduler import LEAST_PREFILL, Plan, Scheduler
from draftproof.errors import InvariantError
from draftproof.sampling import Settings
from draftproof.testing import ScriptedDrafter
from draftproof.types import Drafts


@dataclass
class Target:
    """What the scheduler asks of an executor."""

    capacity: int = 1000
    rows: int = 8
    vocab_size: int = 100
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def scheduler(drafted: int = 4, budget: int = 512) -> Scheduler:
    return Scheduler(num_speculative_tokens=drafted, max_num_batched_tokens=budget)


def request(index: int, length: int, new: int = 50) -> Request:
    settings = Settings(max_new_tokens=new)
    return Request(index=index, prompt=list(range(length)), settings=settings)


def row(
    slot: int, *, prompt: int = 5, emitted: int = 0, cached: int | None = None, new: int = 50
) -> Row:
    tokens = list(range(prompt + emitted))
    kv_len = len(tokens) - 1 if cached is None else cached
    return Row(slot=slot, request=request(slot, prompt, new), tokens=tokens, kv_len=kv_len)


def select(
    rows: list[Row],
    drafted: int = 4,
    budget: int = 512,
    capacity: int = 1000,
    drafter: object = None,
) -> Plan:
    batch = Batch(8, {item.slot: item for item in rows})
    target = Target(capacity=capacity)
    return scheduler(drafted, budget).select(batch, target, drafter or NgramDrafter())  # type: ignore[arg-type]


# -- admission ------------------------------------------------------------------------------------


def test_free_rows_go_to_requests_in_order_of_arrival() -> None:
    queue, batch = scheduler(), Batch(2)
    queue.waiting.extend(request(index, 3) for index in range(4))
    queue.admit(batch)
    assert {slot: r.request.index for slot, r in batch.rows.items()} == {0: 0, 1: 1}
    del batch.rows[0]
    queue.admit(batch)
    assert {slot: r.request.index for slot, r in batch.rows.items()} == {0: 2, 1: 1}
    assert [r.index for r in queue.waiting] == [3]


def test_an_admitted_row_owes_its_whole_prompt() -> None:
    queue, batch = scheduler(drafted=3), Batch(1)
    queue.waiting.append(request(0, 6))
    queue.admit(batch)
    new = batch.rows[0]
    assert (new.kv_len, new.lag, new.decoding, new.generated) == (0, 6, False, 0)
    assert new.stats.num_spec_tokens == 3


# -- how many drafts ------------------------------------------------------------------------------


def test_k_is_each_rows_own_and_never_the_minimum() -> None:
    rows = [row(0, emitted=1, new=50), row(1, emitted=1, new=3), row(2, emitted=1, new=2)]
    assert list(select(rows).wanted) == [4, 1, 0]  # the last of the budget is the target's own


def test_a_drafters_limit_holds_for_its_row_alone() -> None:
    drafter = ScriptedDrafter(continuations=[[]] * 3, wrong_at=0, limits=[2, 0, 9])
    plan = select([row(slot, emitted=1) for slot in range(3)], drafter=drafter)
    assert list(plan.wanted) == [2, 0, 4]


@pytest.mark.parametrize(("capacity", "wanted"), [(6, 0), (7, 1), (9, 3), (10, 4), (99, 4)])
def test_drafts_fit_into_the_cache(capacity: int, wanted: int) -> None:
    assert list(select([row(0, prompt=5, emitted=1)], capacity=capacity).wanted) == [wanted]


# -- how much of a prompt -------------------------------------------------------------------------


def test_prompts_share_what_decoding_rows_leave_of_the_budget() -> None:
    rows = [row(0, emitted=1), row(1, prompt=40, cached=0), row(2, prompt=40, cached=10)]
    plan = select(rows, budget=50)
    assert list(plan.fed) == [1, 40, 5]  # 50 - (1 + 4), the earlier request first
    assert list(plan.wanted) == [4, 0, 0]
    assert plan.scored == [True, True, False]
    assert plan.judged == [0, 1]


def test_earlier_requests_read_first_wherever_their_row_is() -> None:
    late, early = row(0, prompt=30, cached=0), row(1, prompt=30, cached=0)
    late.request, early.request = request(7, 30), request(2, 30)
    assert list(select([late, early], budget=40).fed) == [10, 30]


def test_a_prompt_is_read_even_where_decoding_uses_the_whole_budget() -> None:
    rows = [*(row(slot, emitted=1) for slot in range(7)), row(7, prompt=90, cached=0)]
    assert list(select(rows, budget=8).fed) == [1] * 7 + [LEAST_PREFILL]


def test_a_row_with_nothing_left_for_it_sits_out() -> None:
    plan = select([row(0, prompt=30, cached=0), row(1, prompt=30, cached=0)], budget=16)
    assert [r.slot for r in plan.rows] == [0]


@given(
    states=st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 3), st.integers(0, 59)), max_size=8
    ),
    budget=st.integers(1, 100),
)
def test_every_plan_keeps_the_budget_and_the_order(
    states: list[tuple[int, int, int]], budget: int
) -> None:
    rows = [
        row(
            slot,
            prompt=prompt,
            emitted=emitted,
            cached=None if emitted else min(cached, prompt - 1),
        )
        for slot, (prompt, emitted, cached) in enumerate(states)
    ]
    plan = select(rows, budget=budget)
    slots = [r.slot for r in plan.rows]
    assert slots == sorted(slots)
    assert {r.slot for r in rows if r.decoding} <= set(slots)
    assert all(1 <= fed <= r.lag for r, fed in zip(plan.rows, plan.fed, strict=True))
    decoding = sum(1 + k for r, k in zip(plan.rows, plan.wanted, strict=True) if r.decoding)
    reading = sum(fed for r, fed in zip(plan.rows, plan.fed, strict=True) if not r.decoding)
    assert reading <= max(budget - decoding, LEAST_PREFILL)
    assert not rows or plan.rows  # something always runs


# -- what is fed ----------------------------------------------------------------------------------


def test_known_tokens_and_drafts_lie_end_to_end() -> None:
    plan = Plan(rows=[row(0, emitted=1), row(3, prompt=9, cached=2)], fed=[1, 4], wanted=[2, 0])
    drafts = Drafts(ids=torch.tensor([[70, 71], [-1, -1]]), counts=[2, 0])
    tokens = plan.tokens(drafts, torch.device("cpu"), 100)
    assert tokens.ids.tolist() == [5, 70, 71, 2, 3, 4, 5]
    assert (list(tokens.rows), list(tokens.starts)) == ([0, 3], [5, 2])
    assert (list(tokens.counts), list(tokens.keep)) == ([3, 4], [3, 0])


def test_a_draft_beyond_the_vocabulary_is_not_embedded() -> None:
    plan = Plan(rows=[row(0, emitted=1)], fed=[1], wanted=[2])
    drafts = Drafts(ids=torch.tensor([[10**6, 7]]), counts=[2])
    assert plan.tokens(drafts, torch.device("cpu"), 100).ids.tolist() == [5, 99, 7]


# -- rows and batch -------------------------------------------------------------------------------


def test_the_batch_takes_the_lowest_free_row() -> None:
    batch = Batch(3, {1: row(1)})
    assert batch.free_slot() == 0
    batch.rows[0] = row(0)
    assert batch.free_slot() == 2
    batch.rows[2] = row(2)
    assert batch.free_slot() is None


@pytest.mark.parametrize(
    ("cached", "emitted", "message"),
    [(6, 1, "kv_len 6, expected 0..5"), (-1, 0, "kv_len -1"), (3, 2, "decoding with lag 4")],
)
def test_a_broken_invariant_is_reported(cached: int, emitted: int, message: str) -> None:
    batch = Batch(2, {0: row(0, prompt=5, emitted=emitted, cached=cached)})
    with pytest.raises(InvariantError, match=message):
        batch.check()
    Batch(2, {0: row(0, prompt=5, emitted=1), 1: row(1, prompt=5, cached=2)}).check()
