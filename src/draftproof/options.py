"""Options of a whole call, beside those of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from draftproof.engine.events import Observer
from draftproof.requests import RequestOptions


class Options(RequestOptions, total=False):
    """Arguments of `generate`, `as_completed` and `stream`: `RequestOptions` and these."""

    max_num_seqs: int  # rows at a time, default 8
    # "auto": each round's K from measured costs and acceptance, the default; a number: always that
    # many, the default (4) of the paper's methods and schedules; 0: plain decoding
    num_speculative_tokens: int | Literal["auto"]
    max_num_speculative_tokens: int  # the most that "auto" drafts per row and round, default 8
    # of a number: "constant" (default), or "adaptive": K follows each row's own acceptance
    num_speculative_tokens_schedule: str
    # a row stops drafting after a token that the draft finds less probable; default 0: never
    assistant_confidence_threshold: float
    max_num_batched_tokens: int  # tokens per target forward, default 512
    max_model_len: int | None  # tokens per row; default: what the longest request needs
    enable_prefix_caching: bool  # read once what prompts begin with in common, default True
    observers: Sequence[Observer]
    debug: bool  # check every invariant in every round
    audit: float  # share of requests decoded again, plain and alone, and compared, default 0


# settings of requests may be None for a reason: no eos, no stop strings
NONE_IS_A_VALUE = RequestOptions.__annotations__.keys()


def given(options: Options) -> Options:
    """The options without those of the call that are None, which means their default."""
    kept = {k: v for k, v in options.items() if v is not None or k in NONE_IS_A_VALUE}
    return cast(Options, kept)
