"""Find the shapes under which a model's rows are independent of one another, and confirm them.

First every distinct matrix product and attention of the model is probed by itself, which says what
to round; then the whole model runs the same row alone, in chunks and beside a neighbour, which
says that nothing was overlooked (norms, activations, rotary embeddings, routers). A difference
there is traced to the first module whose output differs.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from draftproof.errors import NumericsError
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.hf.depth import few_layers
from draftproof.hf.heap import give_back_freed_memory
from draftproof.hf.operations import ProductKind, products
from draftproof.numerics.probes import (
    MULTIPLES,
    attention_shapes,
    cancelling,
    row_rule,
    whole_vectors,
)
from draftproof.numerics.shapes import ANY, Rows, Shapes
from draftproof.numerics.store import Verdict, keep, key_of, recall
from draftproof.types import RaggedTokens

LONGEST = 2000  # lengths beyond are not probed: the kernels repeat their blocks
LONG_ROW = 530  # tokens; reaches into a second block of keys

KEPT = 64  # tokens of a forward whose logits are compared as well

Step = list[tuple[int, int]]  # the rows of one forward, and how many tokens each feeds
Call = tuple[str, int]  # a module's name, and which of its calls in one forward
LOGITS: Call = ("logits", 0)


def calibrate(model: BoundModel, *, fresh: bool = False) -> Verdict:
    """The verdict for a model on this machine, from disk when it was reached before.

    fresh: probe again even so
    """
    key = verdict_key(model)
    verdict = None if fresh else recall(key)
    if verdict is None:
        verdict = _probe(model, _longest(model))
        give_back_freed_memory()
        keep(key, verdict)
    return verdict


def verdict_key(model: BoundModel) -> str:
    """What the verdict for a model on this machine is kept under."""
    return key_of(
        {
            "products": sorted(products(model.model)),
            "attention": sorted(case.key for case in model.attention_cases),
            "model": model.config.model_type,
            "layers": len(model.layers),
            "device": str(model.device),
            "longest": _longest(model),
        }
    )


def _longest(model: BoundModel) -> int:
    return min(LONGEST, model.max_positions or LONGEST)


@torch.inference_mode()
def _probe(model: BoundModel, longest: int) -> Verdict:
    rules: dict[str, Rows] = {}
    for kind, product in products(model.model).items():
        rule = _rule_of(product, model.device)
        if rule is None:
            return Verdict(shapes=None, failing=f"{kind} ({product.name})")
        if rule != ANY:
            rules[kind] = rule
    attention = attention_shapes(model.attention_cases, longest, model.device)
    if attention is None:
        return Verdict(shapes=None, failing=", ".join(case.key for case in model.attention_cases))
    least = whole_vectors(_widths(model), model.dtype)
    return _confirm(model, replace(attention, products=rules), least)


def _rule_of(product: ProductKind, device: torch.device) -> Rows | None:
    """The rule of one kind of product, with a weight that shows differences best."""
    rows, weight = cancelling(product.in_features, product.out_features, product.dtype)
    run = product.layer if product.run is None else product.run(weight.to(device))
    return row_rule(run, rows.to(device))


def _widths(model: BoundModel) -> set[int]:
    """Sizes of what goes into and comes out of the layers; not the logits."""
    found = products(model.model).values()
    return {size for p in found for size in (p.in_features, p.out_features)} - {model.vocab_size}


def _confirm(model: BoundModel, found: Shapes, least: int) -> Verdict:
    """The verdict of the whole model, with the smallest multiple from `least` that holds."""
    culprit = None
    for tokens in (n for n in MULTIPLES if n >= least):
        shapes = replace(found, tokens=tokens)
        culprit = first_dependent_module(model, shapes)
        if culprit is None:
            return Verdict(shapes=shapes)
    return Verdict(shapes=None, failing=culprit)


def require(verdict: Verdict) -> Shapes:
    """The shapes of a verdict. Raises NumericsError, naming the operation, where nothing holds."""
    if verdict.shapes is None:
        raise NumericsError(
            f"numerics='exact' cannot be promised on this machine: {verdict.failing} gives a row "
            "another result when other rows are beside it; use numerics='fast'"
        )
    return verdict.shapes


def first_dependent_module(model: BoundModel, shapes: Shapes) -> str | None:
    """Name of the first module whose output depends on how a row is fed; None: there is none.

    A short row is fed whole, in pieces and beside a longer neighbour; a long one whole and in
    pieces, so that calls are large enough to be split among threads. Two layers of each kind run.
    """
    most = min(LONG_ROW, model.max_positions or LONG_ROW)
    short, beside = min(24, most), min(37, most)
    executor = RowsExecutor(model=model, rows=2, capacity=most, shapes=shapes)
    with few_layers(model.model) as skipped:
        recorder = _Recorder(model.model, skipped)
        return _first_difference(
            executor,
            recorder,
            [[(0, short)]],
            _pieces(short, (short // 2, 1)),
            [[(0, short), (1, beside)]],
        ) or _first_difference(
            executor, recorder, [[(0, most)]], _pieces(most, (most // 2 + 41, 5, 1, most // 3))
        )


def _first_difference(
    executor: RowsExecutor, recorder: _Recorder, whole: Sequence[Step], *others: Sequence[Step]
) -> str | None:
    """Name and type of the first module to which it matters in which steps row 0 is fed."""
    model = executor.model
    expected = _record(executor, recorder, whole)
    for steps in others:
        found = _record(executor, recorder, steps)
        for call, output in expected.items():
            if call in found and not torch.equal(output, found[call]):
                return _describe(model, call)
    return None


def _describe(model: BoundModel, call: Call) -> str:
    if call == LOGITS:
        return "what becomes of the logits after the last module"
    return f"{call[0]} ({type(model.model.get_submodule(call[0])).__name__})"


def _pieces(total: int, counts: Sequence[int]) -> list[Step]:
    """Row 0 in pieces of these sizes, as far as they fit, and the rest."""
    steps: list[Step] = []
    for count in counts:
        if 0 < count < total:
            steps.append([(0, count)])
            total -= count
    return [*steps, [(0, total)]]


def _record(
    executor: RowsExecutor, recorder: _Recorder, steps: Sequence[Step]
) -> dict[Call, Tensor]:
    """Every module's outputs for the tokens of row 0, put together over the steps."""
    model = executor.model
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.vocab_size, (2, executor.capacity), generator=generator)
    ids = ids.to(model.device)
    with_logits = all(sum(count for _, count in step) <= KEPT for step in steps)
    for row in range(executor.rows):
        executor.release(row)
    with recorder.listening() as parts:
        for step in steps:
            rows, counts = [row for row, _ in step], [count for _, count in step]
            starts = [executor.lengths[row] for row in rows]
            flat = [ids[r, s : s + n] for r, s, n in zip(rows, starts, counts, strict=True)]
            keep = counts if with_logits else [0] * len(rows)
            recorder.begin(counts[0])
            logits = executor.forward(
                RaggedTokens(
                    ids=torch.cat(flat), rows=rows, starts=starts, counts=counts, keep=keep
                )
            )
            parts.setdefault(LOGITS, []).append(logits[: keep[0]])
    return {call: torch.cat(outputs) for call, outputs in parts.items()}


class _Recorder:
    """Hooks that keep the first `take` tokens of every module output [1, N, D].

    skipped: modules that do nothing, and need no hook
    """

    def __init__(self, model: nn.Module, skipped: Sequence[nn.Module]) -> None:
        self.take = 0
        idle = {id(module) for layer in skipped for module in layer.modules()}
        self.modules = [(n, m) for n, m in model.named_modules() if id(m) not in idle]
        self.parts: dict[Call, list[Tensor]] = {}
        self._calls: Counter[str] = Counter()

    def begin(self, take: int) -> None:
        """A forward whose first `take` tokens belong to the row."""
        self.take = take
        self._calls.clear()

    @contextlib.contextmanager
    def listening(self) -> Iterator[dict[Call, list[Tensor]]]:
        """Everything that is heard until the end of the block."""
        self.parts = {}
        hooks = [m.register_forward_hook(self._hook(name)) for name, m in self.modules]
        try:
            yield self.parts
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, name: str) -> object:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.dim() == 3 and first.shape[0] == 1:
                call = name, self._calls[name]
                self._calls[name] += 1
                self.parts.setdefault(call, []).append(first[0, : self.take].clone())

        return hook
