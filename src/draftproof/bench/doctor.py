"""What a machine can promise: the calibration's verdicts, and what the exact tier costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from draftproof.bench.journal import environment
from draftproof.executors.calibration import calibrate, verdict_key
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.hf.operations import products
from draftproof.numerics.shapes import FAST, NEVER, SIZES, Rows, Shapes
from draftproof.numerics.store import folder, machine, recall
from draftproof.numerics.torch_private import lacks_kernel
from draftproof.types import RaggedTokens

ROUNDS = ((1, 1), (1, 5), (4, 5), (8, 5))  # rows of a decode round, and tokens that each feeds
CONTEXT = 200  # tokens cached per row
SECONDS = 2.0  # of measuring per round and tier, as far as LEAST and MOST repeats allow
LEAST, MOST = 5, 41


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductRule:
    """With which row counts one kind of matrix product is called.

    kind:   name, type and size; module: one of those that have such a product
    sizes:  the counts allowed, all of which were tried; None: nothing is promised
    rows:   the same in words
    """

    kind: str
    module: str
    sizes: tuple[int, ...] | None
    rows: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One forward of the target in both tiers, taken in turn: medians in milliseconds.

    percent:  how much longer exact takes, the median over the pairs of repeats: the two of a pair
              meet the machine in the same state
    """

    rows: int
    width: int  # tokens that each row feeds
    context: int  # tokens cached per row before them
    repeats: int
    fast_ms: float
    exact_ms: float
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is promised in one number format.

    failing:        the operation for which no shapes hold, None where all hold
    products:       the rule of every kind of matrix product
    attention:      the rule of the attention, by name; empty where nothing is promised
    tokens:         the flat token count is rounded up to a multiple of this
    has_kernel:     whether the processor multiplies matrices in this format
    kept, file:     the verdict came from disk, and where it lies
    seconds:        what the calibration took (reading the file, when `kept`)
    """

    dtype: str
    promised: bool
    failing: str | None
    has_kernel: bool
    products: tuple[ProductRule, ...]
    attention: dict[str, Any]
    tokens: int | None
    kept: bool
    seconds: float
    file: str
    costs: tuple[Cost, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def surroundings(device: torch.device) -> dict[str, Any]:
    """What all verdicts depend on, and where they are kept."""
    return environment(device) | machine() | {"device": str(device), "verdicts": str(folder())}


def examine(model: BoundModel, *, fresh: bool = False) -> Finding:
    """Verdict and cost for one loaded model.

    fresh: calibrate again even if there is a verdict
    """
    key = verdict_key(model)
    kept = not fresh and recall(key) is not None
    start = time.perf_counter()
    verdict = calibrate(model, fresh=fresh)
    seconds = time.perf_counter() - start
    shapes = verdict.shapes
    return Finding(
        dtype=str(model.dtype).removeprefix("torch."),
        promised=shapes is not None,
        failing=verdict.failing,
        has_kernel=not lacks_kernel(model.dtype, model.device),
        products=_rules(model, shapes),
        attention={} if shapes is None else _attention(shapes),
        tokens=None if shapes is None else shapes.tokens,
        kept=kept,
        seconds=seconds,
        file=str(folder() / f"{key}.json"),
        costs=() if shapes is None else costs(model, shapes),
    )


def _rules(model: BoundModel, shapes: Shapes | None) -> tuple[ProductRule, ...]:
    rules = []
    for kind, product in products(model.model).items():
        sizes = None if shapes is None else shapes.rows_of(kind).sizes
        rows = "-" if sizes is None else in_words(Rows(sizes))
        rules.append(ProductRule(kind=kind, module=product.name, sizes=sizes, rows=rows))
    return tuple(rules)


def _attention(shapes: Shapes) -> dict[str, Any]:
    return {
        "view": shapes.view,
        "long_view": None if shapes.long_view == NEVER else shapes.long_view,
        "barred": list(shapes.barred),
        "queries": shapes.queries,
        "width": None if shapes.width == NEVER else shapes.width,
    }


def in_words(rule: Rows) -> str:
    """Row counts as ranges of those that were tried: "1..32, 192..512"; "any" without a rule."""
    return ranges(rule.sizes, SIZES) if rule.sizes else "any"


def ranges(chosen: Sequence[int], tried: Sequence[int]) -> str:
    """Numbers as ranges of those that follow each other in `tried`, both ascending."""
    runs: list[list[int]] = []
    for number in chosen:
        follows = bool(runs) and next((n for n in tried if n > runs[-1][-1]), None) == number
        if follows:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def costs(
    model: BoundModel, exact: Shapes, rounds: Sequence[tuple[int, int]] = ROUNDS
) -> tuple[Cost, ...]:
    """What rounds of several sizes take in both tiers, measured in turn."""
    widest = max(width for _, width in rounds)
    context = min(CONTEXT, (model.max_positions or NEVER) - widest)
    most = max(rows for rows, _ in rounds)
    tiers = [_filled(model, shapes, most, context, widest) for shapes in (FAST, exact)]
    return tuple(_cost(tiers, rows, width, context) for rows, width in rounds)


def _filled(model: BoundModel, shapes: Shapes, rows: int, context: int, width: int) -> RowsExecutor:
    """An executor in which every row has `context` tokens cached, and room for `width` more."""
    executor = RowsExecutor(model=model, rows=rows, capacity=context + width, shapes=shapes)
    for row in range(rows):
        executor.forward(_tokens(model, [row], 0, context))
    return executor


def _tokens(model: BoundModel, rows: Sequence[int], start: int, count: int) -> RaggedTokens:
    """Random tokens that these rows feed, with the logits of the last few wanted."""
    generator = torch.Generator().manual_seed(start)
    ids = torch.randint(0, model.vocab_size, (len(rows) * count,), generator=generator)
    return RaggedTokens(
        ids=ids.to(model.device),
        rows=list(rows),
        starts=[start] * len(rows),
        counts=[count] * len(rows),
        keep=[min(count, 8)] * len(rows),
    )


def _cost(tiers: Sequence[RowsExecutor], rows: int, width: int, context: int) -> Cost:
    for executor in tiers:  # warm
        first = _round(executor, rows, width, context)
    repeats = min(MOST, max(LEAST, int(SECONDS / first)))
    times: list[list[float]] = [[], []]
    for repeat in range(repeats):
        order = (0, 1) if repeat % 2 else (1, 0)  # neither always runs in the other's wake
        for tier in order:
            times[tier].append(_round(tiers[tier], rows, width, context))
    fast, exact = times
    return Cost(
        rows=rows,
        width=width,
        context=context,
        repeats=repeats,
        fast_ms=1000 * median(fast),
        exact_ms=1000 * median(exact),
        percent=100 * (median(b / a for a, b in zip(fast, exact, strict=True)) - 1),
    )


def _round(executor: RowsExecutor, rows: int, width: int, context: int) -> float:
    """Seconds of one forward, which is then rolled back."""
    tokens = _tokens(executor.model, range(rows), context, width)
    start = time.perf_counter()
    executor.forward(tokens)
    if executor.device.type == "cuda":
        torch.cuda.synchronize(executor.device)
    seconds = time.perf_counter() - start
    for row in range(rows):
        executor.truncate(row, context)
    return seconds
