"""What once was given a wrong kind with confidence, as an engine and as a server."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from draftproof.faultlab.faulty_engine import FaultyEngine
from draftproof.faultlab.scenarios import Scenario
from draftproof.forensics.diagnose import Diagnosis, diagnose
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import OWN, Inquiry, Run, Setup, Subject, Task
from draftproof.forensics.subjects.engine import RiggedPair
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.forensics.verdicts import Cause, Finding, Kind
from draftproof.testing import noisy_copy, random_prompts, tiny_model

SPECULATION = {
    *(Kind.STALE_KV, Kind.CORRECTION, Kind.UNVERIFIED, Kind.DRAFT_CACHE, Kind.POSITIONS),
    *(Kind.VERIFYING, Kind.ROW_MIXUP, Kind.PADDING_MASK),
}


@dataclass(kw_only=True)
class Differently(FaultyEngine):
    """An engine that is asked, or that decodes, differently from what it is told.

    asked: changes the questions; more: goes into every `Pair.generate`
    """

    asked: Callable[[Inquiry], Inquiry] = lambda inquiry: inquiry
    more: dict[str, Any] = field(default_factory=dict)

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        return super().run(self.asked(inquiry), setup)

    def _pair(self, setup: Setup) -> RiggedPair:
        pair = super()._pair(setup)  # of this subject's own workshop: nobody else's options change
        if "generate" not in vars(pair):
            pair.generate = partial(pair.generate, **self.more)  # type: ignore[method-assign]
        return pair


@cache
def scenario() -> Scenario:
    target = tiny_model("llama", num_hidden_layers=1)
    prompts = random_prompts((3, 11, 19, 6))
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    asked = Inquiry(tasks=tasks, max_new_tokens=24, eos_token_id=())
    draft = noisy_copy(target)
    return Scenario(name="tiny", target=target, draft=draft, tokenizer=None, inquiry=asked)


def different(k: int, **changes: Any) -> Differently:
    made = scenario()
    own: dict[str, Any] = {"target": made.target, "draft": made.draft if k else None, **changes}
    options = {"numerics": "fast"}
    return Differently(name="c", batch=4, k=k, options=options, workshop=Workshop(), **own)


@contextmanager
def asked(candidate: Differently, door: str) -> Iterator[Subject]:
    """The engine itself, or a server in front of it."""
    if door == "engine":
        yield candidate
        return
    pytest.importorskip("httpx")
    from draftproof.faultlab.fake_client import FakeServerClient
    from draftproof.faultlab.fake_server import fake_server
    from draftproof.forensics.subjects.dialects import Vllm

    with fake_server(candidate) as server:
        yield FakeServerClient(
            name=server.url,
            url=server.url,
            batcher=server.batcher,
            dialect=Vllm(),
            batch=4,
            k=candidate.k,
            dtype="float32",
        )


def examined(candidate: Subject, **changes: Any) -> Diagnosis:
    reference = replace(scenario().reference(), **changes)
    return diagnose(Lab(reference=reference, candidate=candidate, inquiry=scenario().inquiry))


def kinds(finding: Finding) -> set[Kind | None]:
    return {finding.kind, *finding.candidates}


doors = pytest.mark.parametrize("door", ["engine", "server"])
ks = pytest.mark.parametrize("k", [0, 3])


@doors
@ks
def test_a_default_repetition_penalty_is_another_default(door: str, k: int) -> None:
    with asked(different(k, more={"repetition_penalty": 1.3}), door) as candidate:
        found = examined(candidate).finding
    assert (found.cause, found.kind) == (Cause.HARNESS, Kind.OTHER_DEFAULTS), found
    assert any("repetition_penalty=1.3" in reason for reason in found.reasons)


def cut_when_long(inquiry: Inquiry) -> Inquiry:
    tasks = (
        replace(task, prompt=task.prompt[1:]) if len(task.prompt) > 5 else task
        for task in inquiry.tasks
    )
    return replace(inquiry, tasks=tuple(tasks))


@doors
@ks
def test_a_prompt_that_is_cut_on_the_left_is_another_prompt(door: str, k: int) -> None:
    with asked(different(k, asked=cut_when_long), door) as candidate:
        found = examined(candidate).finding
    assert (found.cause, found.kind) == (Cause.HARNESS, Kind.OTHER_PROMPT), found
    assert any("first 1 tokens cut off" in reason for reason in found.reasons)


@torch.no_grad()
def int8_weights(model: Any) -> Any:
    """Every matrix rounded to 127 steps per output row."""
    changed = copy.deepcopy(model)
    for weight in changed.parameters():
        if weight.dim() == 2:
            scale = weight.abs().amax(1, keepdim=True) / 127  # [rows, 1]
            weight.copy_((weight / scale).round() * scale)
    return changed


@doors
@ks
def test_int8_weights_are_other_weights(door: str, k: int) -> None:
    target = int8_weights(scenario().target)
    with asked(different(k, target=target), door) as candidate:
        diagnosis = examined(candidate)
    assert diagnosis.forks
    found = diagnosis.finding
    assert (found.cause, found.kind) == (Cause.HARNESS, Kind.OTHER_MODEL), found


@dataclass
class OffVerify:
    """A target whose scores are off while it scores a block, and right in single steps."""

    inner: Any
    by: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, tokens: Any) -> Any:
        logits = self.inner.forward(tokens)  # [sum(keep), V]
        block = max(tokens.keep, default=0) > 1
        return logits.lerp(logits.roll(1, -1), self.by) if block else logits


def off(by: float) -> Any:
    def rig(engine: Any, inquiry: Inquiry) -> Any:
        engine.target = OffVerify(engine.target, by)
        return engine

    return rig


def test_an_accepted_draft_that_breaks_the_output_is_the_verifying_forward() -> None:
    """float32, K = 0 clean: no evidence is missing."""
    found = examined(different(3, rig=off(0.6))).finding
    assert (found.cause, found.kind) == (Cause.BUG, Kind.VERIFYING), found


@doors
def test_a_verify_step_that_is_a_little_off_is_never_numeric(door: str) -> None:
    with asked(different(3, rig=off(0.1), dtype="bfloat16"), door) as candidate:
        diagnosis = examined(candidate, dtype="bfloat16")
    assert diagnosis.forks
    assert Cause.NUMERIC not in {one.cause for one in diagnosis.rows.values()}


def one_less(inquiry: Inquiry) -> Inquiry:
    return replace(inquiry, max_new_tokens=inquiry.max_new_tokens - 1)


@doors
def test_rows_that_all_end_one_token_early_have_another_limit(door: str) -> None:
    with asked(different(3, asked=one_less), door) as candidate:
        found = examined(candidate).finding
    assert (found.cause, found.kind) == (Cause.HARNESS, None), found


def test_what_is_wrong_at_the_prefill_is_no_fault_of_speculation() -> None:
    with asked(different(3, target=noisy_copy(scenario().target, amount=0.5)), "server") as c:
        diagnosis = examined(c)
    assert diagnosis.facts is not None
    assert diagnosis.facts.value("wrong_at_prefill") is True
    assert not kinds(diagnosis.finding) & SPECULATION, diagnosis.finding
