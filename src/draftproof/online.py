"""Engines that requests are added to while they run, as a server needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from draftproof.api import Pair
from draftproof.batch import Request
from draftproof.engine.assembly import assemble
from draftproof.engine.engine import Engine
from draftproof.options import Options
from draftproof.requests import RequestOptions
from draftproof.results import Reporter
from draftproof.sampling import whole_number
from draftproof.text import Prompt


def open_engine(pair: Pair, options: Options, *, max_kv_tokens: int | None = None) -> Engine:
    """An engine without requests (see `requests_of`).

    options:        those of a whole run, as `Pair.generate` takes them; max_model_len is needed,
                    the tokens per row, prompt and new ones, at most the target's context
    max_kv_tokens:  tokens that all admitted rows may come to need; None: as many as all rows have
                    room for
    """
    plan = pair._blueprint((), options)
    rows = whole_number("max_num_seqs", options.get("max_num_seqs", 8), 1)
    return assemble(
        replace(plan, max_num_seqs=rows, max_requests=None, max_kv_tokens=max_kv_tokens)
    )


def requests_of(pair: Pair, prompts: Sequence[Prompt], options: RequestOptions) -> list[Request]:
    """What `Engine.add` takes; raises InputError as `Pair.generate` does.

    Indices count from 0 in every call: number the requests of one engine anew.
    """
    return pair._requests(prompts, cast(Options, options))


def reporter_of(pair: Pair, options: Options) -> Reporter:
    """What makes results of the rows of an engine that was opened with these options."""
    return pair._reporter(options)
