"""Models that are a table, so that every distribution is known, and many rows drawn at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from draftproof.batch import Request, Row
from draftproof.drafters.base import Drafter
from draftproof.processing import stream_key
from draftproof.sampling import Settings
from draftproof.types import RaggedTokens
from draftproof.verifiers.base import Verifier

VOCAB = 5
START = 0  # the prompt


class TableExecutor:
    """The next token depends on the last one alone: logits = table[last token]."""

    def __init__(self, table: Tensor, rows: int) -> None:
        self.table, self.rows, self.capacity = table, rows, 64
        self.vocab_size, self.device = table.shape[1], torch.device("cpu")
        self.lengths = [0] * rows

    def forward(self, tokens: RaggedTokens) -> Tensor:
        for row, count in zip(tokens.rows, tokens.counts, strict=True):
            self.lengths[row] += count
        return self.table[tokens.ids][tokens.kept_indices]

    def truncate(self, row: int, length: int) -> None:
        self.lengths[row] = length

    def release(self, row: int) -> None:
        self.lengths[row] = 0

    def check(self) -> None:
        return

    def poison(self) -> None:
        return


def random_table(seed: int, spread: float = 1.3) -> Tensor:
    """Logits [V, V] float32 of a bigram model."""
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def fresh_rows(count: int, first_seed: int, settings: dict[str, Any]) -> list[Row]:
    """Rows that differ in nothing but their seed."""
    rows, shared = [], Settings(**settings)
    for slot in range(count):
        stream = stream_key(first_seed + slot, [START])
        request = Request(index=slot, prompt=[START], settings=shared, stream=stream)
        rows.append(Row(slot=slot, request=request, tokens=[START]))
    return rows


def play_round(
    rows: Sequence[Row], wanted: int, table: Tensor, drafter: Drafter, verifier: Verifier
) -> None:
    """Propose, score, judge and commit one round of all rows."""
    drafts = drafter.propose(rows, [wanted] * len(rows))
    fed = []
    for row, ids, count in zip(rows, drafts.ids.tolist(), drafts.counts, strict=True):
        fed += [row.tokens[-1], *ids[:count]]
    verdict = verifier.judge(table[torch.tensor(fed)], rows, drafts)
    outcomes = zip(rows, verdict.accepted.tolist(), verdict.tokens.tolist(), strict=True)
    for row, accepted, tokens in outcomes:
        row.tokens += tokens[: accepted + 1]
        drafter.commit(row)


def draw_tokens(
    rows: Sequence[Row], length: int, wanted: int, table: Tensor, drafter: Drafter, judge: Verifier
) -> np.ndarray:
    """The first `length` tokens of every row, [R, length]."""
    waiting = list(rows)
    while waiting:
        play_round(waiting, wanted, table, drafter, judge)
        waiting = [row for row in waiting if row.generated < length]
    return np.array([row.emitted[:length] for row in rows])


def processed(logits: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """The distribution that settings make of logits [V], written from the definitions."""
    scaled = logits.astype(np.float64) / settings.get("temperature", 1.0)
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p)
    if top_k := settings.get("top_k", 0):
        p[order[top_k:]] = 0
        p /= p.sum()
    if (top_p := settings.get("top_p", 1.0)) < 1:
        before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
        p[order[before >= top_p]] = 0
        p /= p.sum()
    p[p < settings.get("min_p", 0.0) * p.max()] = 0
    return p / p.sum()


def exact_joint(table: Tensor, settings: dict[str, Any], length: int) -> np.ndarray:
    """Probability of every sequence of `length` tokens, [V] * length."""
    steps = np.stack([processed(row, settings) for row in table.numpy()])
    joint = steps[START]
    for _ in range(length - 1):
        joint = joint[..., None] * steps
    return joint


def p_value(tokens: np.ndarray, joint: np.ndarray) -> float:
    """Chi-square of drawn sequences [R, length] against their exact distribution.

    0 when something impossible was drawn. Cells that are expected fewer than 5 times are one cell.
    """
    counts = np.zeros(joint.shape)
    np.add.at(counts, tuple(tokens.T), 1)
    counts, expected = counts.ravel(), joint.ravel() * len(tokens)
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    if kept.sum() < 2:
        return 1.0
    return float(
        stats.chisquare(counts[kept], expected[kept] * counts.sum() / expected.sum()).pvalue
    )
