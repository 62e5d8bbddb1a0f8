"""From a row of the engine to what a caller gets: results, and events while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.batch import Row
from draftproof.engine.engine import Commit
from draftproof.logprobs import describe
from draftproof.text import Detokenizer, decode
from draftproof.types import Audit, Result, StreamEvent, TokenLogprob, TopLogprobs


def _unaudited(row: Row) -> None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporter:
    """What all results of a run have in common.

    tokenizer:   None leaves out all text
    mode:        "speculative", or "plain: <reason>"
    vocab_size, device: of the target's logits
    draft_limit: context of the draft model, None where it has none
    audit:       what an audit finds of a row that has ended, None where it was not chosen
    """

    tokenizer: Any
    mode: str
    numerics: str
    executor: str
    vocab_size: int
    device: torch.device
    draft_limit: int | None = None
    audit: Callable[[Row], Audit | None] = _unaudited

    def results(self, rounds: Iterable[list[Commit]]) -> Iterator[Result]:
        """Each row's result in the round in which it ends."""
        for commits in rounds:
            for commit in commits:
                if commit.row.finish_reason is not None:
                    yield self.result(commit.row)

    def events(self, rounds: Iterable[list[Commit]]) -> Iterator[StreamEvent]:
        """What each round gave each row; nothing for a row that only read its prompt."""
        writers: dict[int, Detokenizer] = {}
        for commits in rounds:
            for commit in commits:
                if commit.emitted or commit.row.finish_reason is not None:
                    yield self._event(commit, writers)

    def _event(self, commit: Commit, writers: dict[int, Detokenizer]) -> StreamEvent:
        row, request = commit.row, commit.row.request
        final, text = row.finish_reason is not None, None
        if self.tokenizer is not None:
            writer = writers.setdefault(request.index, Detokenizer(self.tokenizer))
            text = writer.push(commit.emitted, final=final)
        latest = row.outputs.logprobs[-1:] if commit.emitted else []
        if final:
            writers.pop(request.index, None)
        return StreamEvent(
            index=request.origin,
            sequence=request.sequence,
            token_ids=commit.emitted,
            text=text,
            logprobs=self._logprobs(request.settings.logprobs, latest, commit.emitted),
            result=self.result(row) if final else None,
        )

    def result(self, row: Row) -> Result:
        """The result of a row that has ended."""
        assert row.finish_reason is not None
        request, ids, outputs = row.request, row.emitted, row.outputs
        settings, tokenizer = request.settings, self.tokenizer
        return Result(
            index=request.origin,
            sequence=request.sequence,
            token_ids=ids,
            text=None if tokenizer is None else decode(tokenizer, ids, skip_special_tokens=True),
            finish_reason=row.finish_reason,
            prompt_len=len(request.prompt),
            num_cached_tokens=row.num_cached_tokens,
            stats=row.stats,
            mode=self._mode(row),
            numerics=self.numerics,
            executor=self.executor,
            seed=settings.seed if settings.sampled else None,
            logprobs=self._logprobs(settings.logprobs, outputs.logprobs, ids),
            prompt_logprobs=self._prompt_logprobs(row),
            scores=self._joined(settings.output_scores, outputs.scores),
            logits=self._joined(settings.output_logits, outputs.logits),
            audited=self.audit(row),
        )

    def _mode(self, row: Row) -> str:
        limit, length = self.draft_limit, len(row.request.prompt)
        if limit is None or length < limit or not self.mode.startswith("speculative"):
            return self.mode
        return f"plain: the draft's context of {limit} tokens holds no prompt of {length}"

    def _logprobs(
        self, wish: int | None, pieces: Sequence[TopLogprobs], ids: Sequence[int]
    ) -> list[TokenLogprob] | None:
        return None if wish is None else describe(pieces, ids, self.tokenizer)

    def _prompt_logprobs(self, row: Row) -> list[TokenLogprob | None] | None:
        wish, rest = row.request.settings.prompt_logprobs, row.request.prompt[1:]
        known = self._logprobs(wish, row.outputs.prompt_logprobs, rest)
        return None if known is None else [None, *known]

    def _joined(self, wanted: bool, pieces: Sequence[Tensor]) -> Tensor | None:
        """[new tokens, V] float32, also when there are none."""
        empty = torch.empty(0, self.vocab_size, dtype=torch.float32, device=self.device)
        return torch.cat([empty, *pieces]) if wanted else None
