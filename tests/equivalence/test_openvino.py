"""OpenVINO's executor gives the reference's tokens in float32: the same subjects as on PyTorch.

PyTorch takes part in the tests that are parametrised, so that what is asked of one executor is
asked of the other.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from openvino import Core

from draftproof import InputError, NumericsError, Pair, UnsupportedArgumentError
from draftproof.errors import InvariantError, OutOfMemoryError, UnsupportedModelError
from draftproof.executors.openvino import calibration
from draftproof.executors.openvino.compiled import Settings
from draftproof.executors.openvino.conversion import converted
from draftproof.executors.openvino.executor import PagedExecutor
from draftproof.executors.openvino.feeding import FORWARD
from draftproof.executors.openvino.model import PagedModel
from draftproof.numerics.shapes import Shapes
from draftproof.numerics.torch_private import TRACE, WITHOUT
from draftproof.testing import ARCHITECTURES, Oracle, Recorder, assert_same_tokens, tiny_model
from draftproof.types import RaggedTokens

from .subjects import K, near_copy, oracle

EXECUTORS = ["torch", "openvino"]
NEW = 10
LENGTHS = (3, 40, 1, 33)  # 32 tokens are a block

# no softcap, no sinks, no experts in OpenVINO's paged attention and in traced graphs
REFUSED = {
    "gemma2": "softcap",
    "gpt_oss": "sinks",
    "mixtral": "experts",
    "qwen2_moe": "experts",
    "qwen3_moe": "experts",
    "olmoe": "experts",
    "granitemoe": "experts",
    "deepseek_v3": "experts",
}
QUICK = ["llama", "gemma3_text", "gpt2"]  # a plain one, one with a window, one of another kind
OTHERS = [name for name in ARCHITECTURES if name not in {*REFUSED, *QUICK}]


def tokens(model: Any, draft: Any, prompts: Any, **options: Any) -> list[list[int]]:
    executor = options.pop("executor", "openvino")
    extra = {name: options.pop(name) for name in ("draft_executor",) if name in options}
    subject = Pair(model, draft, numerics="fast", executor=executor, **extra)
    results = subject.generate(prompts, **{"debug": True, "max_new_tokens": NEW, **options})
    assert {result.executor for result in results} <= {executor}
    return [result.token_ids for result in results]


# -- the reference's tokens


def check_architecture(name: str) -> None:
    if not ARCHITECTURES[name].supported:
        pytest.skip(f"{name} cannot be bound in this release of transformers")
    subject = Oracle.of(tiny_model(name, seed=1), LENGTHS, tokens=NEW, seed=5)
    draft = tiny_model(name, seed=2)
    for drafter, rows, budget in (("ngram", 3, 24), (draft, 4, 512), (subject.drafter(2), 4, 16)):
        found = tokens(
            subject.model,
            drafter,
            subject.prompts,
            max_num_seqs=rows,
            max_num_batched_tokens=budget,
        )
        assert_same_tokens(found, subject.expected(NEW), f"{name} {drafter}")


@pytest.mark.parametrize("name", QUICK)
def test_an_architecture(name: str) -> None:
    check_architecture(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_another_architecture(name: str) -> None:
    check_architecture(name)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("drafted", [0, pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_every_drafter(executor: str, drafted: int, rows: int) -> None:
    subject = oracle() if rows > 1 else oracle().pick([0, 1])
    offsets = [index % (K + 1) for index in range(len(subject.prompts))]
    drafters = [None, "ngram", near_copy(), subject.model, subject.drafter(offsets)]
    drafters.append(subject.drafter(2, wrong=10**6))
    for drafter in drafters:
        found = tokens(
            subject.model,
            drafter,
            subject.prompts,
            executor=executor,
            max_num_seqs=rows,
            num_speculative_tokens=drafted,
        )
        assert_same_tokens(found, subject.expected(NEW), f"{executor} {drafter}")


@pytest.mark.parametrize(("target", "draft"), [("torch", "openvino"), ("openvino", "torch")])
def test_target_and_draft_on_different_executors(target: str, draft: str) -> None:
    subject = oracle()
    found = tokens(
        subject.model, near_copy(), subject.prompts, executor=target, draft_executor=draft
    )
    assert_same_tokens(found, subject.expected(NEW))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_draft_and_accept_different_numbers_of_tokens(executor: str) -> None:
    subject, rounds = oracle().pick([0, 1, 2, 3]), Recorder()
    drafter = subject.drafter(K, limits=[0, 4, 1, 3])
    found = tokens(
        subject.model,
        drafter,
        subject.prompts,
        executor=executor,
        max_new_tokens=20,
        observers=[rounds],
    )
    assert_same_tokens(found, subject.expected(20))
    assert (0, 4, 1, 3) in {tuple(len(row.drafts) for row in e.rows) for e in rounds.events}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_budgets_and_eos_end_rows(executor: str) -> None:
    subject = oracle()
    budgets = [9, 2, 14, 1, 5, 20, 0, 7]
    found = tokens(
        subject.model, near_copy(), subject.prompts, executor=executor, max_new_tokens=budgets
    )
    assert_same_tokens(found, subject.expected(budgets))
    eos = subject.expected(20)[0][4]
    expected = [_until(row, eos) for row in subject.expected(20)]
    found = tokens(
        subject.model,
        near_copy(),
        subject.prompts,
        executor=executor,
        max_new_tokens=20,
        eos_token_id=eos,
    )
    assert_same_tokens(found, expected)


def _until(row: list[int], eos: int) -> list[int]:
    return row[: row.index(eos) + 1] if eos in row else row


@pytest.mark.parametrize("draft", [None, "ngram", "model"])
def test_seeded_samples_are_those_of_pytorch(draft: str | None) -> None:
    subject = oracle()
    helper = near_copy() if draft == "model" else draft
    options = {"do_sample": True, "temperature": 0.8, "top_k": 30, "seed": 7}
    found = [
        tokens(subject.model, helper, subject.prompts, executor=executor, **options)
        for executor in EXECUTORS
    ]
    assert_same_tokens(found[1], found[0])
    assert found[1] != subject.expected(NEW)  # it did sample


def test_logprobs_are_those_of_pytorch() -> None:
    subject = oracle().pick([0, 1, 3])
    options = {"max_new_tokens": 6, "logprobs": 3, "prompt_logprobs": 2, "output_logits": True}
    ours, theirs = (
        Pair(subject.model, "ngram", numerics="fast", executor=executor).generate(
            subject.prompts, **options
        )
        for executor in EXECUTORS
    )
    for one, other in zip(ours, theirs, strict=True):
        # sums in another order: a few units in the last place of float32
        torch.testing.assert_close(one.logits, other.logits, atol=1e-4, rtol=1e-4)
        assert [t.token_id for t in one.logprobs] == [t.token_id for t in other.logprobs]
        assert len(one.prompt_logprobs) == len(other.prompt_logprobs)


def test_bfloat16_weights_in_float32_arithmetic() -> None:
    model = tiny_model("llama", seed=1).bfloat16()
    subject = Oracle.of(tiny_model("llama", seed=1).bfloat16().float(), LENGTHS, tokens=NEW, seed=5)
    paged = PagedModel.open(model, Settings(dtype="float32"))
    assert paged.card.dtype == "bfloat16"
    results = Pair(paged, "ngram", executor="openvino").generate(
        subject.prompts, max_new_tokens=NEW
    )
    assert_same_tokens([result.token_ids for result in results], subject.expected(NEW))


def test_exported_a_model_is_the_one_that_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export where there is no torch.jit.trace: kept apart, and the same logits."""
    model, logits, folders = oracle().model, [], set()
    for without in ("", TRACE.name):
        monkeypatch.setenv(WITHOUT, without)
        folders.add(converted(model))
        executor = PagedExecutor(model=PagedModel.open(model, Settings()), rows=1, capacity=64)
        steps = ([5, 6, 7, 8], [9], list(range(40)))  # one token would be taken for a constant
        logits += [executor.forward(ragged(executor, [0], [ids], [len(ids)])) for ids in steps]
    assert len(folders) == 2
    for one, other in zip(logits[:3], logits[3:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_folder_is_converted_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    from draftproof import load
    from draftproof.models import demo_paths

    caplog.set_level("INFO", logger="draftproof")
    target, draft = demo_paths()
    prompts = ["A list is", "In the"]
    options = {"max_new_tokens": 12, "num_speculative_tokens": 3}
    expected = load(target, dtype="float32").generate(prompts, **options)
    for _ in range(2):
        pair = load(target, draft, dtype="float32", executor="openvino")
        found = pair.generate(prompts, **options)
        assert [r.text for r in found] == [r.text for r in expected]
    assert pair.describe()["executor"] == pair.describe()["draft_executor"] == "openvino"
    lines = [r.getMessage() for r in caplog.records if "openvino: converted" in r.getMessage()]
    assert len(lines) <= 2  # target and draft, each at most once
    assert converted(target) == converted(target)


# -- exact numerics


def exact_pair(dtype: str, draft: Any) -> Pair:
    """Of oracle's target; skips where the processor or its kernels do not allow it."""
    settings = {"dtype": dtype}
    able = Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and "BF16" not in able:
        pytest.skip("this processor does not compute in bfloat16")
    try:
        return Pair(
            oracle().model, draft, executor="openvino", executor_options=settings, numerics="exact"
        )
    except NumericsError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_exact_numerics_a_row_keeps_its_bits(dtype: str) -> None:
    subject = oracle()
    options: dict[str, Any] = {"max_new_tokens": NEW, "output_logits": True, "debug": True}
    alone = exact_pair(dtype, None).generate(subject.prompts, max_num_seqs=1, **options)
    for draft, rows, drafted, budget in (
        (None, 3, 0, 512),
        (None, 8, 0, 19),
        ("ngram", 1, 3, 512),
        (near_copy(), 3, 4, 512),
        (near_copy(), 8, "auto", 512),
        (subject.drafter([0, 3, 1, 2, 4, 0, 2, 1][: len(subject.prompts)]), 5, 5, 24),
    ):
        found = exact_pair(dtype, draft).generate(
            subject.prompts,
            max_num_seqs=rows,
            num_speculative_tokens=drafted,
            max_num_batched_tokens=budget,
            **options,
        )
        for one, other in zip(alone, found, strict=True):
            assert other.numerics == "exact"
            assert one.token_ids == other.token_ids
            assert torch.equal(one.logits, other.logits), f"{draft} {rows} {drafted}"


def test_a_rule_that_does_not_hold_is_noticed() -> None:
    """The kernel for single tokens adds up otherwise, here at least; the calibration sees it."""
    model = PagedModel.open(oracle().model, Settings())
    right = calibration._rule(model)
    assert right is not None
    shapes = Shapes(products={FORWARD: right}, least=calibration.LEAST)
    if not calibration._holds(model, shapes):
        pytest.skip("no exact numerics on this processor")
    if calibration._holds(model, replace(shapes, least=1)):
        pytest.skip("single tokens keep their bits on this processor")
    executor = PagedExecutor(model=model, rows=2, capacity=80, shapes=replace(shapes, least=1))
    ids = calibration._ids(model, 2, 80)
    whole = calibration._run(executor, ids, [[(0, 80)]], 20)
    single = calibration._run(executor, ids, [[(0, 60)], *[[(0, 1)]] * 20], 20)
    assert not torch.equal(whole, single)


# -- the executor's memory


@pytest.fixture(scope="module")
def paged() -> PagedModel:
    return PagedModel.open(oracle().model, Settings())


def ragged(executor: Any, rows: list[int], fed: list[list[int]], keep: list[int]) -> RaggedTokens:
    return RaggedTokens(
        ids=torch.tensor([token for ids in fed for token in ids]),
        rows=rows,
        starts=[executor.lengths[row] for row in rows],
        counts=[len(ids) for ids in fed],
        keep=keep,
    )


def test_any_order_of_feeding_and_taking_back(paged: PagedModel) -> None:
    model, draw = oracle().model, random.Random(4)
    executor = PagedExecutor(model=paged, rows=3, capacity=100)
    known: list[list[int]] = [[], [], []]
    for _ in range(12):
        rows = sorted(draw.sample(range(3), draw.randint(1, 3)))
        fed = [[draw.randrange(101) for _ in range(draw.choice([1, 2, 5, 20]))] for _ in rows]
        keep = [draw.randint(0, len(ids)) for ids in fed]
        logits = executor.forward(ragged(executor, rows, fed, keep)).split(keep)
        for row, ids, piece, count in zip(rows, fed, logits, keep, strict=True):
            known[row] += ids
            expected = model(torch.tensor([known[row]])).logits[0][len(known[row]) - count :]
            torch.testing.assert_close(piece, expected, atol=1e-4, rtol=1e-4)
            if len(known[row]) > 60:
                known[row] = []
                executor.release(row)
            else:
                del known[row][draw.randint(0, len(known[row])) :]
                executor.truncate(row, len(known[row]))
        executor.check()
        executor.poison()
    for row in range(3):
        executor.release(row)
    executor.check()
    assert sorted(executor.pool.free) == list(range(executor.pool.blocks))


def test_poison_would_show(paged: PagedModel) -> None:
    executor = PagedExecutor(model=paged, rows=1, capacity=64)
    executor.forward(ragged(executor, [0], [[1, 2, 3, 4]], [0]))
    clean = executor.forward(ragged(executor, [0], [[5]], [1]))
    executor.truncate(0, 2)
    executor.poison()
    executor.lengths[0] = 4  # a rollback that is forgotten
    ruined = executor.forward(ragged(executor, [0], [[5]], [1]))
    assert not torch.allclose(clean, ruined, atol=1e-2)


def test_tokens_that_do_not_continue_their_row_are_refused(paged: PagedModel) -> None:
    executor = PagedExecutor(model=paged, rows=2, capacity=40)
    executor.forward(ragged(executor, [0], [[1, 2]], [1]))
    wrong = RaggedTokens(ids=torch.tensor([3]), rows=[0], starts=[1], counts=[1], keep=[1])
    with pytest.raises(InvariantError, match="row 0: fed at 1, cached 2"):
        executor.forward(wrong)
    with pytest.raises(InvariantError, match="row 1: 41 tokens exceed 40"):
        executor.forward(ragged(executor, [1], [[1] * 41], [0]))
    with pytest.raises(InvariantError, match="row 0: truncate to 3, cached 2"):
        executor.truncate(0, 3)
    executor.check()


class Failing:
    """A request that takes its inputs and then fails."""

    def set_tensor(self, name: str, tensor: Any) -> None:
        assert name

    def start_async(self) -> None:
        raise RuntimeError("no memory")


def test_a_forward_that_fails_leaves_no_block_behind(paged: PagedModel) -> None:
    executor = PagedExecutor(model=paged, rows=2, capacity=64)
    executor.forward(ragged(executor, [0], [[1, 2]], [1]))
    executor._request = Failing()
    with pytest.raises(RuntimeError, match="no memory"):
        executor.forward(ragged(executor, [0, 1], [[3] * 40, [4]], [1, 1]))
    assert executor.lengths == [2, 0]
    executor.check()


def test_a_cache_that_does_not_fit_is_refused(paged: PagedModel) -> None:
    with pytest.raises(OutOfMemoryError, match="max_num_seqs=1 would fit"):
        PagedExecutor(model=paged, rows=4, capacity=64, free=paged.kv_bytes(1, 64) + 1)


def test_an_eight_bit_cache_rounds_and_is_smaller() -> None:
    subject = oracle().pick([0, 1])
    small = PagedModel.open(subject.model, Settings(kv_cache_dtype="uint8"))
    exact = PagedModel.open(subject.model, Settings())
    assert small.kv_bytes(2, 64) < exact.kv_bytes(2, 64)
    logits = []
    for model in (small, exact):
        executor = PagedExecutor(model=model, rows=1, capacity=64)
        executor.forward(ragged(executor, [0], [subject.prompts[1]], [1]))
        logits.append(executor.forward(ragged(executor, [0], [[5]], [1])))
    assert not torch.equal(*logits)
    # 8-bit keys and values: an error of a per cent of the largest logit
    torch.testing.assert_close(*logits, atol=0.05 * float(logits[1].abs().max()), rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2"])  # gpt2: head and embedding tied
def test_a_draft_with_eight_bit_weights_changes_no_token(name: str) -> None:
    subject, accepted = oracle(name), []
    for weights in ("int8", "auto"):
        pair = Pair(
            subject.model,
            near_copy(name),
            numerics="fast",
            executor="openvino",
            executor_options={"draft_weights": weights},
        )
        found = pair.generate(
            subject.prompts, max_new_tokens=NEW, num_speculative_tokens=K, debug=True
        )
        assert_same_tokens([row.token_ids for row in found], subject.expected(NEW))
        accepted.append(sum(row.stats.num_accepted_draft_tokens for row in found))
    assert accepted[0] >= 0.8 * accepted[1] > 0


def test_eight_bit_weights_round_and_nothing_more() -> None:
    logits = []
    for weights in ("int8", "auto"):
        model = PagedModel.open(oracle().model, Settings(dtype="float32", weights=weights))
        executor = PagedExecutor(model=model, rows=1, capacity=64)
        logits.append(executor.forward(ragged(executor, [0], [[5, 6, 7, 8]], [4])))
    assert not torch.equal(*logits)
    torch.testing.assert_close(*logits, atol=0.05 * float(logits[1].abs().max()), rtol=0)


# -- what is refused


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_converted_is_refused_by_name(name: str) -> None:
    if not ARCHITECTURES[name].supported:
        pytest.skip(f"{name} cannot be bound in this release of transformers")
    with pytest.raises(UnsupportedModelError, match="executor='torch'") as caught:
        PagedModel.open(tiny_model(name), Settings())
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("part", "answer", "culprit"),
    [("_rule", None, "FullyConnected"), ("_holds", False, "PagedAttention")],
)
def test_exact_numerics_are_refused_with_the_operation(
    part: str, answer: Any, culprit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, part, lambda *_: answer)
    monkeypatch.setattr(calibration, "recall", lambda _: None)
    monkeypatch.setattr(calibration, "keep", lambda *_: None)
    with pytest.raises(NumericsError, match=culprit):
        Pair(oracle().model, executor="openvino", numerics="exact")
    pair = Pair(oracle().model, executor="openvino")
    assert pair.numerics == "fast"
    assert culprit in pair.describe()["numerics_reason"]


def test_an_eight_bit_cache_is_never_exact() -> None:
    with pytest.raises(NumericsError, match="KV cache that rounds"):
        Pair(
            oracle().model,
            executor="openvino",
            executor_options={"kv_cache_dtype": "uint8"},
            numerics="exact",
        )


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"executor": "tpu"}, "tpu"),
        ({"executor": "openvino", "method": "eqspec"}, "eqspec"),
        ({"executor": "openvino", "executor_options": {"kv_cache_dtype": "int3"}}, "int3"),
        ({"executor": "openvino", "executor_options": {"colour": 1}}, "colour"),
        ({"executor_options": {"num_threads": 1}}, "executor_options"),
        ({"draft_executor": "openvino"}, "draft_executor"),
        ({"executor": "openvino", "executor_options": {"weights": "int8"}}, "draft_weights"),
        ({"executor": "openvino", "executor_options": {"draft_weights": "int8"}}, "draft_weights"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], culprit: str) -> None:
    with pytest.raises(UnsupportedArgumentError, match=culprit):
        Pair(oracle().model, "ngram", **options)


def test_an_export_without_configuration_is_refused(tmp_path: Any) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    with pytest.raises(InputError, match=r"config\.json"):
        PagedModel.open(tmp_path, Settings())
