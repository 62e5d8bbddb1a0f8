"""The checks of this folder notice small faults: each is put into the engine, and one must fail.

A check that passes with every fault would be worth nothing. Which check notices what says as much
about a fault as the fault itself: see the comments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftproof.drafters.model import ModelDrafter
from draftproof.engine import engine as engine_module
from draftproof.engine.engine import Outcome
from draftproof.engine.scheduler import Plan
from draftproof.engine.stopping import Cut
from draftproof.executors import layout as layout_module
from draftproof.executors.layout import RowLayout
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.stack import FlatRows
from draftproof.testing import Recorder, assert_cache_is_fresh, assert_same_tokens, prepared
from draftproof.verifiers import GreedyVerifier

from .subjects import K, generated, near_copy, oracle, pair

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True, scope="module")
def bound_before_any_fault() -> Iterator[None]:
    """Binding compares a model with its own generate, which would find the faults as well."""
    pairs = [pair(oracle(name).model) for name in ("llama", "mistral")] + [pair(near_copy())]
    yield
    for one in pairs:
        one.close()


# -- the checks -----------------------------------------------------------------------------------


def tokens() -> None:
    """Ragged prompts in chunks, every acceptance count, an eos inside a block: == the reference."""
    for name in ("llama", "mistral"):
        subject = oracle(name).pick([0, 1, 2, 3, 5])
        eos = [[], [subject.continuations[1][6]], [], [], []]
        found = generated(
            subject.model,
            subject.drafter([0, 4, 2, 3, 1]),
            subject.prompts,
            max_new_tokens=16,
            eos_token_id=eos,
            max_num_seqs=3,
            max_num_batched_tokens=24,
        )
        assert_same_tokens(found, subject.expected(16, eos))


def rounds() -> None:
    """Each row emits what it accepted, and one more."""
    subject, recorder = oracle().pick([0, 1, 2]), Recorder()
    options: dict[str, Any] = {"max_new_tokens": 12, "observers": [recorder]}
    generated(subject.model, subject.drafter([0, 2, 4]), subject.prompts, **options)
    full = [e for e in recorder.events if [len(row.drafts) for row in e.rows] == [K] * 3]
    assert full
    assert all([len(row.emitted) for row in event.rows] == [1, 3, 5] for event in full)


def acceptance() -> None:
    """A draft that is the target is right in every round."""
    subject, recorder = oracle().pick([0, 1, 2]), Recorder()
    options: dict[str, Any] = {"max_new_tokens": 5 * (K + 1) + 1, "observers": [recorder]}
    generated(subject.model, subject.model, subject.prompts, **options)
    for index in range(3):
        assert [row.accepted for row in recorder.of(index) if row.drafts] == [K] * 5


def caches() -> None:
    """After every round both caches are what a fresh prefill gives."""
    subject = oracle().pick([0, 1, 2])
    for draft in (near_copy(), subject.model):
        engine = prepared(
            pair(subject.model, draft), subject.prompts, max_new_tokens=10, debug=True
        )
        while engine.scheduler.waiting or engine.batch.rows:
            engine.step()
            for row in engine.batch:
                for executor in (engine.target, engine.drafter.executor):  # type: ignore[attr-defined]
                    assert_cache_is_fresh(executor, row.slot, row.tokens)


@pytest.mark.parametrize("check", [tokens, rounds, acceptance, caches])
def test_without_a_fault_every_check_passes(check: Callable[[], None]) -> None:
    check()


# -- the faults -----------------------------------------------------------------------------------


def positions_one_too_high_while_decoding(patch: Patch) -> None:
    real = RowLayout.positions

    def shifted(self: RowLayout, device: torch.device) -> Tensor:
        late = torch.tensor(self.tokens.starts) > 0
        return real(self, device) + late.repeat_interleave(torch.tensor(self.tokens.counts))

    patch.setattr(RowLayout, "positions", shifted)


def mask_lets_one_stale_slot_in(patch: Patch) -> None:
    real = layout_module.additive_mask
    patch.setattr(
        layout_module, "additive_mask", lambda positions, *rest: real(positions + 1, *rest)
    )


def window_one_too_wide(patch: Patch) -> None:
    real = layout_module.additive_mask

    def wider(positions: Tensor, view: int, window: int | None, *rest: Any) -> Tensor:
        return real(positions, view, window and window + 1, *rest)

    patch.setattr(layout_module, "additive_mask", wider)


def writes_of_all_rows_to_all_slots(patch: Patch) -> None:
    """`t[:, slots]` with one index per token: the Cartesian product."""

    def write(self: RowLayout, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> None:
        place = self._on(keys.device)
        for row in place.rows.unique():
            keys[row][:, place.slots] = key[0, :, : len(place.rows)]
            values[row][:, place.slots] = value[0, :, : len(place.rows)]

    patch.setattr(RowLayout, "write", write)
    patch.setattr(BoundModel, "_stack_for", lambda self, ids, layout: None)  # writes by itself


def layers_as_one_function_write_one_slot_late(patch: Patch) -> None:
    real = RowLayout.flat

    def late(self: RowLayout, *args: Any) -> FlatRows:
        rows = real(self, *args)
        # from the start, the check at load would notice it and take the modules
        return replace(rows, slots=rows.slots + int(min(self.tokens.starts) > 0))

    patch.setattr(RowLayout, "flat", late)


def rollback_keeps_one_too_many(patch: Patch) -> None:
    def truncate(self: RowsExecutor, row: int, length: int) -> None:
        self.lengths[row] = min(length + 1, self.lengths[row])

    patch.setattr(RowsExecutor, "truncate", truncate)


def rollback_forgets_the_draft(patch: Patch) -> None:
    patch.setattr(ModelDrafter, "commit", lambda self, row: None)


def draft_keeps_one_rejected_token(patch: Patch) -> None:
    def commit(self: ModelDrafter, row: Any) -> None:
        length = self.executor.lengths[row.slot]
        self.executor.truncate(row.slot, min(length, len(row.tokens)))

    patch.setattr(ModelDrafter, "commit", commit)


def draft_skips_a_token_after_full_acceptance(patch: Patch) -> None:
    """The lag of two is taken for one: the last draft is never fed to the draft model."""
    real = ModelDrafter._first

    def first(self: ModelDrafter, rows: Any) -> Tensor:
        for row in rows:
            if row.generated and self.lag(row) == 2:
                self.executor.lengths[row.slot] += 1
        return real(self, rows)

    patch.setattr(ModelDrafter, "_first", first)


def bonus_is_dropped(patch: Patch) -> None:
    def offered(self: Outcome) -> list[int]:
        full = self.drafts and self.accepted == len(self.drafts)
        return self.choices[: self.accepted + (not full)]

    patch.setattr(Outcome, "offered", property(offered))


def every_row_accepts_the_minimum(patch: Patch) -> None:
    real = GreedyVerifier.judge

    def judge(self: GreedyVerifier, *args: Any) -> Any:
        verdict = real(self, *args)
        return replace(verdict, accepted=verdict.accepted.min().expand_as(verdict.accepted))

    patch.setattr(GreedyVerifier, "judge", judge)


def one_token_too_many_is_accepted(patch: Patch) -> None:
    real = GreedyVerifier.judge

    def judge(self: GreedyVerifier, logits: Tensor, rows: Any, drafts: Any) -> Any:
        verdict = real(self, logits, rows, drafts)
        counts = torch.tensor(drafts.counts)
        accepted = torch.minimum(verdict.accepted + 1, counts)
        wrong = verdict.tokens.clone()
        width = drafts.ids.shape[1]
        take = torch.arange(width) < accepted[:, None]  # drafts are emitted as they are
        wrong[:, :width] = torch.where(take, drafts.ids, wrong[:, :width])
        return replace(verdict, accepted=accepted, tokens=wrong)

    patch.setattr(GreedyVerifier, "judge", judge)


def eos_inside_a_block_is_overlooked(patch: Patch) -> None:
    real = engine_module.cut

    def overlook(row: Any, offered: Any, decode: Any, room: int) -> Cut:
        decision = real(row, offered, decode, room)
        if decision.count < len(offered) and decision.reason == "eos":
            return Cut(min(len(offered), row.budget), None)
        return decision

    patch.setattr(engine_module, "cut", overlook)


def drafts_are_fed_to_the_neighbour(patch: Patch) -> None:
    real = Plan.tokens

    def swapped(self: Plan, drafts: Any, *rest: Any) -> Any:
        same = len(set(drafts.counts)) == 1 and drafts.ids.shape[1]
        return real(self, replace(drafts, ids=drafts.ids.flip(0)) if same else drafts, *rest)

    patch.setattr(Plan, "tokens", swapped)


FAULTS = [
    (positions_one_too_high_while_decoding, tokens),
    (mask_lets_one_stale_slot_in, tokens),
    (window_one_too_wide, tokens),
    (writes_of_all_rows_to_all_slots, tokens),
    (layers_as_one_function_write_one_slot_late, tokens),
    (rollback_keeps_one_too_many, tokens),  # by the executor's own check of where it is fed
    (one_token_too_many_is_accepted, tokens),
    (eos_inside_a_block_is_overlooked, tokens),
    (drafts_are_fed_to_the_neighbour, tokens),
    (positions_one_too_high_while_decoding, caches),
    (mask_lets_one_stale_slot_in, caches),
    (writes_of_all_rows_to_all_slots, caches),
    # the output stays right, only slower: no comparison of tokens can notice these
    (bonus_is_dropped, rounds),
    (every_row_accepts_the_minimum, rounds),
    (draft_skips_a_token_after_full_acceptance, acceptance),
    (draft_skips_a_token_after_full_acceptance, caches),
    (draft_keeps_one_rejected_token, caches),
    (rollback_forgets_the_draft, caches),
]


@pytest.mark.parametrize(
    ("inject", "check"), FAULTS, ids=[f"{f.__name__}-{c.__name__}" for f, c in FAULTS]
)
def test_a_fault_is_noticed(
    inject: Callable[[Patch], None], check: Callable[[], None], monkeypatch: Patch
) -> None:
    oracle(), oracle("mistral"), near_copy()  # what is right is computed without the fault
    inject(monkeypatch)
    with pytest.raises(AssertionError):
        check()
