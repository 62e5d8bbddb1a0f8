"""What a row records besides its tokens: scores, raw logits, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.scheduler import Plan
from draftproof.types import Drafts, RaggedTokens, TopLogprobs

# raw logits and processed scores of one row's positions, [K + 1, V] each
Evidence = tuple[Tensor, Tensor]


def top_logprobs(logits: Tensor, tokens: Sequence[int], count: int) -> TopLogprobs:
    """Log-probabilities under raw logits [n, V]: of `tokens` [n] and of the `count` best."""
    logprobs = logits.to(torch.float32).log_softmax(-1)
    index = torch.tensor(list(tokens), dtype=torch.int64, device=logits.device)[:, None]
    chosen = logprobs.gather(1, index)
    best = logprobs.topk(min(count, logprobs.shape[-1]))
    rank = (logprobs > chosen).sum(-1) + 1
    return TopLogprobs(chosen=chosen[:, 0], rank=rank, ids=best.indices, values=best.values)


def checksums(logits: Tensor) -> Tensor:
    """A number per position in which every bit of its logits counts, [n, V] -> [n] int64."""
    bits = logits.to(torch.float32).view(torch.int32).to(torch.int64)
    odd = torch.arange(1, 2 * bits.shape[-1], 2, dtype=torch.int64, device=bits.device)
    return (bits * odd).sum(-1)


def evidence_of(
    plan: Plan, drafts: Drafts, logits: Tensor, scores: Tensor | None
) -> dict[int, Evidence]:
    """Logits and scores [K + 1, V] of the rows that record them, by index into `plan.rows`.

    drafts: of the judged rows; logits, scores [sum(K + 1), V]
    """
    if not any(row.request.settings.recorded for row in plan.rows):
        return {}
    sizes = [count + 1 for count in drafts.counts]
    pieces = logits.split(sizes), (logits if scores is None else scores).split(sizes)
    return {
        index: (raw, processed)
        for index, raw, processed in zip(plan.judged, *pieces, strict=True)
        if plan.rows[index].request.settings.recorded
    }


def record(row: Row, emitted: Sequence[int], logits: Tensor, scores: Tensor) -> None:
    """Keep what the row asked for of its newly emitted tokens; logits, scores [n, V]."""
    settings, outputs = row.request.settings, row.outputs
    logits, scores = logits[: len(emitted)], scores[: len(emitted)]
    if settings.output_scores:
        outputs.scores.append(scores.to(torch.float32, copy=True))
    if settings.output_logits:
        outputs.logits.append(logits.to(torch.float32, copy=True))
    if settings.output_checksums:
        outputs.checksums.append(checksums(logits))
    if settings.logprobs is not None:
        outputs.logprobs.append(top_logprobs(logits, emitted, settings.logprobs))


def split_prompts(plan: Plan, tokens: RaggedTokens, drafts: Drafts, logits: Tensor) -> Tensor:
    """Record prompt log-probabilities and return the logits to be judged, [sum(K + 1), V].

    row        reads its prompt and is scored   decodes   reads a chunk of its prompt
    logits     p p p p 0                        0 1 2     p p p
    judged             0                        0 1 2
    """
    if not any(plan.reads_prompt):
        return logits
    judged = []
    pieces = logits.split(list(tokens.keep))
    for index, (row, piece) in enumerate(zip(plan.rows, pieces, strict=True)):
        if plan.reads_prompt[index]:
            _record_prompt(row, piece)
        if plan.scored[index]:
            judged.append(piece[len(piece) - drafts.counts[index] - 1 :])
    return torch.cat(judged) if judged else logits[:0]


def _record_prompt(row: Row, logits: Tensor) -> None:
    """logits [fed, V]: after each of the prompt's tokens from `kv_len` on."""
    prompt, count = row.request.prompt, row.request.settings.prompt_logprobs
    following = prompt[row.kv_len + 1 : row.kv_len + 1 + len(logits)]
    if following and count is not None:
        known = top_logprobs(logits[: len(following)], following, count)
        row.outputs.prompt_logprobs.append(known)
