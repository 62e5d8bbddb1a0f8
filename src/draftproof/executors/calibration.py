"""Find the shapes under which a model's rows are independent of one another, and confirm them.

First every distinct matrix product and attention of the model is probed by itself, which says what
to round; then the whole model runs the same row alone, in chunks and beside a neighbour, which
says that nothing was overlooked (norms, activations, rotary embeddings, routers). A difference
there is traced to the first module whose output differs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from draftproof.errors import NumericsError
from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.hf.operations import products
from draftproof.numerics.probes import attention_shapes, probe_rows, row_multiple
from draftproof.numerics.shapes import Shapes
from draftproof.numerics.store import Verdict, keep, key_of, recall
from draftproof.types import RaggedTokens

LONGEST = 2000  # lengths beyond are not probed: the kernels repeat their blocks


def calibrate(model: BoundModel, *, fresh: bool = False) -> Verdict:
    """The verdict for a model on this machine, from disk when it was reached before.

    fresh: probe again even so
    """
    found = products(model.model)
    longest = min(LONGEST, model.max_positions or LONGEST)
    key = key_of(
        {
            "products": sorted(found),
            "attention": sorted(case.key for case in model.attention_cases),
            "model": model.config.model_type,
            "layers": len(model.layers),
            "device": str(model.device),
            "longest": longest,
        }
    )
    verdict = None if fresh else recall(key)
    if verdict is None:
        verdict = _probe(model, longest)
        keep(key, verdict)
    return verdict


@torch.inference_mode()
def _probe(model: BoundModel, longest: int) -> Verdict:
    linears: dict[str, int | None] = {}
    for key, product in products(model.model).items():
        rows = probe_rows(product.in_features, product.out_features, model.dtype)
        linears[key] = row_multiple(product.run, rows.to(model.device))
        if linears[key] is None:
            return Verdict(shapes=None, failing=f"{key} ({product.name})", linears=linears)
    attention = attention_shapes(model.attention_cases, longest)
    if attention is None:
        failing = ", ".join(case.key for case in model.attention_cases)
        return Verdict(shapes=None, failing=failing, linears=linears)
    tokens = max((n for n in linears.values() if n is not None), default=1)
    shapes = replace(attention, tokens=tokens)
    culprit = first_dependent_module(model, shapes)
    if culprit is not None:
        return Verdict(shapes=None, failing=culprit, linears=linears)
    return Verdict(shapes=shapes, linears=linears)


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

    One row of 24 tokens is fed whole, in pieces, and beside a longer neighbour.
    """
    count = min(24, model.max_positions or 24)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.vocab_size, (2, 3 * count), generator=generator).to(model.device)
    whole = _record(model, shapes, ids, [[(0, count)]])
    pieces = [[(0, count // 2)], [(0, 1)], [(0, count - count // 2 - 1)]]
    beside = [[(0, count), (1, count + 13)]]
    for steps in (pieces, beside):
        other = _record(model, shapes, ids, steps)
        for name, output in whole.items():
            if name in other and not torch.equal(output, other[name]):
                return f"{name} ({type(model.model.get_submodule(name)).__name__})"
    return None


def _record(
    model: BoundModel, shapes: Shapes, ids: Tensor, steps: list[list[tuple[int, int]]]
) -> dict[str, Tensor]:
    """Every module's outputs for the tokens of row 0, put together over the steps, by name."""
    executor = RowsExecutor(model=model, rows=2, capacity=ids.shape[1], shapes=shapes)
    recorder = _Recorder()
    with recorder.on(model.model):
        for step in steps:
            rows, counts = [row for row, _ in step], [count for _, count in step]
            starts = [executor.lengths[row] for row in rows]
            flat = [ids[r, s : s + n] for r, s, n in zip(rows, starts, counts, strict=True)]
            recorder.take = counts[0]
            executor.forward(
                RaggedTokens(
                    ids=torch.cat(flat), rows=rows, starts=starts, counts=counts, keep=counts
                )
            )
    return {name: torch.cat(parts) for name, parts in recorder.parts.items()}


class _Recorder:
    """Hooks that keep the first `take` tokens of every module output [1, N, D]."""

    def __init__(self) -> None:
        self.take = 0
        self.parts: dict[str, list[Tensor]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def on(self, model: nn.Module) -> _Recorder:
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_hook(self._hook(name)))
        return self

    def _hook(self, name: str) -> object:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.dim() == 3 and first.shape[0] == 1:
                self.parts.setdefault(name, []).append(first[0, : self.take].clone())

        return hook

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
