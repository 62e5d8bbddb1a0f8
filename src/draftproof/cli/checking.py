"""The runs of `draftproof check`: a plain reference, then each batch size against it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from draftproof.cli import loading
from draftproof.cli.console import note
from draftproof.cli.encoding import encode_items
from draftproof.cli.options import DecodingOptions, ModelOptions
from draftproof.cli.progress import Meter, ProgressBar
from draftproof.cli.prompts import PromptItem
from draftproof.cli.summary import Summary, summarise
from draftproof.errors import InputError
from draftproof.forensics.compare import Comparison, compare
from draftproof.types import Result

if TYPE_CHECKING:
    from draftproof.api import Pair


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One batch size, compared with the reference."""

    batch_size: int
    comparison: Comparison
    summary: Summary

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "batch_size": self.batch_size,
            "exact": self.comparison.exact,
            "rows": self.comparison.rows,
            "partial": self.comparison.partial,
            "divergences": [asdict(divergence) for divergence in self.comparison.divergences],
            **self.summary.as_dict(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Everything a check found."""

    prompts: int
    sources: list[str]
    reference: Summary
    trials: list[Trial]
    settings: dict[str, Any]
    token_text: Callable[[int], str]

    @property
    def equal(self) -> bool:
        """Whether every row of every trial is exact."""
        return all(trial.comparison.equal for trial in self.trials)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "equal": self.equal,
            "prompts": self.prompts,
            "settings": self.settings,
            "reference": self.reference.as_dict(),
            "trials": [trial.as_dict() for trial in self.trials],
        }


def run_check(
    items: Sequence[PromptItem],
    models: ModelOptions,
    decoding: DecodingOptions,
    sizes: Sequence[int],
) -> Check:
    """Decode plainly one at a time, then speculatively at every batch size.

    Raises InputError when a prompt cannot be used: a check that leaves prompts out would claim
    more than it did.
    """
    _refuse_bad(items)
    pair = loading.open_pair(models)
    items = encode_items(pair, items)
    _refuse_bad(items)
    plain = replace(decoding, max_num_seqs=1, num_speculative_tokens=0)
    reference, reference_summary = _generate(pair, items, plain)
    settings = pair.describe() | decoding.report()
    del settings["max_num_seqs"]  # every trial has its own
    return Check(
        prompts=len(items),
        sources=[item.source for item in items],
        reference=reference_summary,
        trials=[_trial(pair, items, decoding, size, reference) for size in sizes],
        settings=settings,
        token_text=lambda token_id: str(pair.tokenizer.decode([token_id])),
    )


def _refuse_bad(items: Sequence[PromptItem]) -> None:
    bad = [item for item in items if item.error is not None]
    for item in bad:
        note(f"{item.source}: {item.error}", style="red")
    if bad:
        raise InputError(f"{len(bad)} of {len(items)} prompts cannot be used; leave them out")


def _trial(
    pair: Pair,
    items: Sequence[PromptItem],
    decoding: DecodingOptions,
    batch_size: int,
    reference: Sequence[Result],
) -> Trial:
    results, summary = _generate(pair, items, replace(decoding, max_num_seqs=batch_size))
    comparison = compare([r.token_ids for r in reference], [r.token_ids for r in results])
    return Trial(batch_size=batch_size, comparison=comparison, summary=summary)


def _generate(
    pair: Pair, items: Sequence[PromptItem], decoding: DecodingOptions
) -> tuple[list[Result], Summary]:
    limits = [item.max_new_tokens for item in items]
    meter = Meter([decoding.max_new_tokens if n is None else n for n in limits])
    prompts = [item.ids or [] for item in items]
    started = time.perf_counter()
    with ProgressBar(meter) as bar:
        results = pair.generate(prompts, **decoding.keywords(limits), observers=[bar])
    return results, summarise(results, time.perf_counter() - started)
