"""Audits: chosen requests are decoded again, plain and alone, and a fault is found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftproof import custom_generate
from draftproof.api import Pair
from draftproof.auditing import chosen
from draftproof.batch import Request
from draftproof.cli import app
from draftproof.engine.engine import Engine
from draftproof.errors import AuditError, InputError
from draftproof.executors.rows import RowsExecutor
from draftproof.models import demo_paths
from draftproof.near_ties import band_of, step_of
from draftproof.testing import random_prompts, tiny_model
from draftproof.types import AuditOutcome, Result

from .subjects import near_copy, oracle

PROMPTS = random_prompts([5, 20, 33, 9, 40, 12], seed=3)
NEW = 10


def subject(kind: str = "model", **options: Any) -> Pair:
    draft = near_copy("llama") if kind == "model" else "ngram" if kind == "ngram" else None
    return Pair(oracle("llama").model, draft, **{"numerics": "fast", **options})


def outcomes(results: list[Result]) -> Counter[str]:
    return Counter(str(result.audited) for result in results)


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_what_is_right_is_equal(kind: str, numerics: str) -> None:
    both = subject(kind, numerics=numerics)
    options: dict[str, Any] = {"max_new_tokens": NEW, "max_num_seqs": 3}
    found = both.generate(PROMPTS, audit=1.0, **options)
    assert outcomes(found) == {"equal": len(PROMPTS)}
    plain = both.generate(PROMPTS, **options)
    assert [r.token_ids for r in found] == [r.token_ids for r in plain]
    assert {r.audited for r in plain} == {None}


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback"])
def test_other_methods_are_audited_too(method: str) -> None:
    found = subject(method=method).generate(PROMPTS, audit=1.0, max_new_tokens=NEW)
    assert outcomes(found) == {"equal": len(PROMPTS)}


def test_settings_of_a_request_hold_in_its_audit() -> None:
    """Seeded draws, penalties, stop ids and processors with a state of their own."""

    class EveryThird:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls % 3 == 0:
                scores[:, ::2] = -torch.inf
            return scores

    found = subject().generate(
        PROMPTS,
        audit=1.0,
        max_new_tokens=[NEW, 1, 3, NEW, NEW, NEW],
        temperature=[0.8, None, 0.9, None, None, 1.2],
        seed=5,
        repetition_penalty=[None, 1.4, None, None, 1.2, None],
        eos_token_id=[[1], None, None, [7, 9], None, [3]],
        logits_processor=[[EveryThird()], [], [], [EveryThird()], [], []],
    )
    assert outcomes(found) == {"equal": len(PROMPTS)}


def test_rejection_sampling_cannot_be_audited_and_says_so() -> None:
    found = subject().generate(
        PROMPTS, audit=1.0, temperature=0.9, coupling="rejection", max_new_tokens=4
    )
    assert outcomes(found) == {"not auditable": len(PROMPTS)}
    assert all("rejection" in str(r.audited and r.audited.reason) for r in found)


def test_the_share_is_kept_and_the_choice_depends_on_the_request_alone() -> None:
    prompts = random_prompts([6] * 2000, seed=9)
    requests = [Request(index=i, prompt=p, origin=i) for i, p in enumerate(prompts)]
    taken = {request.index for request in requests if chosen(request, 0.05)}
    assert 60 <= len(taken) <= 140
    elsewhere = [Request(index=2000 - i, prompt=p, origin=7) for i, p in enumerate(prompts)]
    assert taken == {2000 - r.index for r in elsewhere if chosen(r, 0.05)}
    assert taken < {r.index for r in requests if chosen(r, 0.2)}


@pytest.mark.parametrize("share", [-0.1, 1.5, "half", True])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InputError, match="audit"):
        subject().generate(PROMPTS, audit=share)


def test_criteria_that_ask_a_clock_end_a_row_and_not_its_audit() -> None:
    calls = []

    def late(ids: torch.Tensor, scores: object) -> bool:
        calls.append(1)
        return len(calls) > 4  # ends every row at once from the fifth token on

    found = subject("none").generate(
        PROMPTS[:3], audit=1.0, max_new_tokens=NEW, stopping_criteria=[late], max_num_seqs=1
    )
    assert {len(r.token_ids) for r in found} == {5, 1}
    assert outcomes(found) == {"equal": 3}


def test_a_stream_that_is_left_early_leaves_nothing_running() -> None:
    both = subject()
    stream = both.stream(PROMPTS, audit=1.0, max_new_tokens=NEW)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    found = both.generate(PROMPTS, audit=1.0, max_new_tokens=NEW)
    assert outcomes(found) == {"equal": len(PROMPTS)}


# -- faults are found ------------------------------------------------------------------------------


def break_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied prefix arrives with its channels moved."""
    own = RowsExecutor.copy_prefix

    def wrong(self: RowsExecutor, source: int, row: int, tokens: Any) -> None:
        own(self, source, row, tokens)
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor[row, :, : len(tokens)] = tensor[row, :, : len(tokens)].roll(1, -1)

    monkeypatch.setattr(RowsExecutor, "copy_prefix", wrong)


def break_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two rows or more the logits of the first are those of the second."""
    own = RowsExecutor.forward

    def wrong(self: RowsExecutor, tokens: Any) -> torch.Tensor:
        logits = own(self, tokens).clone()
        if len(tokens.rows) > 1 and len(logits) > 1:
            logits[0] = logits[-1]
        return logits

    monkeypatch.setattr(RowsExecutor, "forward", wrong)


def break_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafts are judged, the token emitted is off by one."""
    own = Engine._apply

    def wrong(self: Engine, row: Any, fed: int, outcome: Any) -> list[int]:
        if outcome.drafts and outcome.accepted == 0:
            outcome.choices[0] = (outcome.choices[0] + 1) % 100
        return own(self, row, fed, outcome)

    monkeypatch.setattr(Engine, "_apply", wrong)


def break_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculative rows end a token early."""
    from draftproof.engine import engine

    own = engine.cut

    def wrong(row: Any, offered: Any, decode: Any, room: int) -> Any:
        decided = own(row, offered, decode, room)
        early = len(offered) > 1 and decided.reason is not None and decided.count > 1
        return type(decided)(decided.count - 1, decided.reason) if early else decided

    monkeypatch.setattr(engine, "cut", wrong)


@pytest.mark.parametrize("fault", [break_copies, break_neighbours, break_acceptance, break_the_end])
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Any, numerics: str) -> None:
    start = random_prompts([40], seed=8)[0]
    prompts = [start + prompt for prompt in PROMPTS]
    both = subject(numerics=numerics)
    options: dict[str, Any] = {"max_new_tokens": NEW, "max_num_seqs": 3, "audit": 1.0}
    right = both.generate(prompts, num_speculative_tokens=3, **options)
    fault(monkeypatch)
    found = both.generate(prompts, num_speculative_tokens=3, **options)
    wrong = [r.token_ids != ok.token_ids for r, ok in zip(found, right, strict=True)]
    assert any(wrong)
    for result, differs, ok in zip(found, wrong, right, strict=True):
        audit = result.audited
        assert audit is not None
        assert audit.failed == differs or (numerics == "exact" and audit.failed)  # other bits
        if differs:
            assert audit.position is not None
            assert result.token_ids[: audit.position] == ok.token_ids[: audit.position]
            assert audit.expected[audit.position :] == tuple(
                ok.token_ids[audit.position : audit.position + 1]
            )
            assert sum(len(r.emitted) for r in audit.rounds) == len(result.token_ids)


def test_other_bits_are_a_fault_in_exact_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token stays, but the logits move in their last places."""
    both = subject("none", numerics="exact")
    own = RowsExecutor.forward

    def wrong(self: RowsExecutor, tokens: Any) -> torch.Tensor:
        logits = own(self, tokens)
        return logits * (1 + 2.0**-20) if len(tokens.rows) > 1 else logits

    monkeypatch.setattr(RowsExecutor, "forward", wrong)
    found = both.generate(PROMPTS, audit=1.0, max_new_tokens=4, max_num_seqs=2)
    assert all(r.audited is not None and r.audited.failed for r in found[:2])


# -- near ties -------------------------------------------------------------------------------------


def test_near_ties_in_fast_bfloat16_are_no_faults_and_large_gaps_are() -> None:
    model = tiny_model("llama", seed=1).to(torch.bfloat16)
    both = Pair(model, numerics="fast")
    outcomes_of, own = {}, RowsExecutor.forward
    for shift in (0.01, 5.0):
        with pytest.MonkeyPatch.context() as patch:

            def wrong(self: RowsExecutor, tokens: Any, shift: float = shift) -> torch.Tensor:
                logits = own(self, tokens).float()
                if len(tokens.rows) > 1:  # the second best wins where it is near enough
                    best = logits.topk(2, dim=-1)
                    near = best.values[:, 0] - best.values[:, 1] < shift
                    logits[near, best.indices[near, 1]] += 2 * shift
                return logits

            patch.setattr(RowsExecutor, "forward", wrong)
            found = both.generate(
                random_prompts([8] * 24, seed=2), audit=1.0, max_new_tokens=20, max_num_seqs=8
            )
            outcomes_of[shift] = Counter(r.audited.outcome for r in found if r.audited)
    assert outcomes_of[0.01][AuditOutcome.DIFFERENT] == 0
    assert outcomes_of[0.01][AuditOutcome.NEAR_TIE] > 0
    assert outcomes_of[5.0][AuditOutcome.DIFFERENT] > 0


def test_bands() -> None:
    assert step_of("bfloat16", 20.0) == 0.125
    assert band_of("float32", 20.0) == 0.0
    assert 0.25 <= band_of("bfloat16", 20.0) <= 2.0
    assert band_of("bfloat16", 1e9) == 2.0


# -- doors -----------------------------------------------------------------------------------------


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def test_the_drop_in_raises_for_a_failed_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", seed=1)
    options = {"custom_generate": custom_generate, "max_new_tokens": 8, "pad_token_id": 0}
    inputs = padded(PROMPTS)
    plain = model.generate(**inputs, **options)
    assert torch.equal(model.generate(**inputs, **options, audit=1.0), plain)
    break_neighbours(monkeypatch)
    with pytest.raises(AuditError, match=r"row \d+: new token \d+"):
        model.generate(**inputs, **options, audit=1.0)


def test_the_command_exits_with_4_and_replay_reads_the_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target, draft = demo_paths()
    lines = [{"prompt": p} for p in ("A list is", "The iterator", "In the", "Return a new")]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["generate", "--target", str(target), "--draft", str(draft), "--input", str(source)]
    words += ["--dtype", "float32", "--max-new-tokens", "8", "--output", str(output), "--json"]
    words += ["--overwrite", "--audit", "1", "--audit-evidence", str(tmp_path / "evidence")]
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["audits"] == {"equal": 4}
    assert {json.loads(line)["audited"] for line in output.read_text().splitlines()[1:]} == {
        "equal"
    }
    assert not (tmp_path / "evidence").exists()
    break_neighbours(monkeypatch)
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 4, run.output
    assert "AUDIT FAILED" in run.stderr
    monkeypatch.undo()
    shown = CliRunner().invoke(app, ["replay", str(tmp_path / "evidence"), "--json"])
    assert shown.exit_code == 1, shown.output
    assert json.loads(shown.stdout)["fork"] is not None
