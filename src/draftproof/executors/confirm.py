"""Whether the layers of a model give the same bits as one function and as transformers' modules."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.numerics.shapes import Rows, Shapes
from draftproof.types import RaggedTokens

COUNTS = (4, 3)  # tokens that two rows feed


def confirm_stack(model: BoundModel) -> None:
    """Let a model run as modules when running as one function changes a bit of what comes of it.

    One ragged forward of two rows is compared, logits, keys and values, under shapes that cut the
    tokens into pieces and fill rows and queries up.
    """
    stack = model.stack
    if stack is None or (model.max_positions or max(COUNTS)) < max(COUNTS):
        return
    rules = {product.kind: Rows((2, 4)) for product in stack.products}
    shapes = Shapes(products=rules, queries=4, lone_row=False)
    ours = _outcome(model, shapes)
    model.stack = None
    theirs = _outcome(model, shapes)
    if all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True)):
        model.stack = stack
    else:
        model.rewrite.notes.append("decoder layers run as modules: as one function they differ")


def _outcome(model: BoundModel, shapes: Shapes) -> list[Tensor]:
    """Logits of every token, and all that was cached."""
    rows = len(COUNTS)
    executor = RowsExecutor(model=model, rows=rows, capacity=max(COUNTS), shapes=shapes)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, model.vocab_size, (sum(COUNTS),), generator=generator)
    counts = list(COUNTS)
    logits = executor.forward(
        RaggedTokens(
            ids=ids.to(model.device),
            rows=list(range(rows)),
            starts=[0] * rows,
            counts=counts,
            keep=counts,
        )
    )
    return [logits, *executor.cache.keys, *executor.cache.values]
