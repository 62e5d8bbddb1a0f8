"""`draftproof demo`: the embedded pair, plain and speculative, with the tokens compared."""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from draftproof.cli import loading
from draftproof.cli.console import Exit, note, reports_errors, stdout
from draftproof.cli.options import JsonFlag, ModelOptions, NumSpeculativeTokens
from draftproof.cli.summary import Summary, percent, summarise
from draftproof.forensics.compare import Comparison, compare
from draftproof.types import Result

if TYPE_CHECKING:
    from draftproof.api import Pair

Length = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens per prompt.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads; all by default.")
]
ROWS = 8
SAMPLES = slice(2, 4)  # rows whose text is shown
SHOWN = 160  # characters of a text


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to decode the prompts, and what came of it."""

    name: str
    results: list[Result]
    summary: Summary
    match: Comparison
    speedup: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "speedup": round(self.speedup, 3),
            "exact": self.match.exact,
            "rows": self.match.rows,
            "differing_rows": [divergence.row for divergence in self.match.divergences],
            **self.summary.as_dict(),
        }


@reports_errors
def command(
    max_new_tokens: Length = 64,
    num_speculative_tokens: NumSpeculativeTokens = 4,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Decode eight prompts with the embedded models: plainly, in a batch, and speculatively.

    Needs no network. Exit codes: 0 all tokens are those of plain decoding one at a time, 1 some
    differ.
    """
    from draftproof.models import DEMO_PROMPTS

    pair = _open(threads)
    ways = compare_ways(pair, DEMO_PROMPTS, max_new_tokens, num_speculative_tokens)
    if json:
        typer.echo(jsonlib.dumps(_report(pair, ways), indent=2))
    else:
        _print(ways, DEMO_PROMPTS)
    differing = [way for way in ways if not way.match.equal]
    for way in differing:
        rows = ", ".join(str(divergence.row) for divergence in way.match.divergences)
        note(f"{way.name}: other tokens in row {rows}", style="bold red")
    raise typer.Exit(Exit.FAILED if differing else Exit.OK)


def _open(threads: int | None) -> Pair:
    from draftproof.models import demo_paths

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some releases ask the hub about local folders
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    target, draft = demo_paths()
    return loading.open_pair(ModelOptions(target=str(target), draft=str(draft), dtype="float32"))


def compare_ways(
    pair: Pair, prompts: Sequence[str], max_new_tokens: int, num_speculative_tokens: int
) -> list[Way]:
    """Every way to decode the prompts, compared with the first: plain, one at a time."""
    settings = {
        "plain, 1 row": (1, 0),
        f"plain, {ROWS} rows": (ROWS, 0),
        f"speculative, {ROWS} rows": (ROWS, num_speculative_tokens),
    }
    ids = [pair.encode(prompt) for prompt in prompts]
    for rows, drafted in settings.values():  # the first calls of kernels are slow: not counted
        _timed(pair, ids, rows, drafted, max_new_tokens=2)
    timed = {n: _timed(pair, ids, *s, max_new_tokens=max_new_tokens) for n, s in settings.items()}
    reference, base = next(iter(timed.values()))
    return [
        Way(
            name=name,
            results=results,
            summary=summary,
            match=compare([r.token_ids for r in reference], [r.token_ids for r in results]),
            speedup=summary.tokens_per_second / max(base.tokens_per_second, 1e-9),
        )
        for name, (results, summary) in timed.items()
    ]


def _timed(
    pair: Pair, ids: list[list[int]], rows: int, drafted: int, *, max_new_tokens: int
) -> tuple[list[Result], Summary]:
    started = time.perf_counter()
    results = pair.generate(
        ids,
        max_new_tokens=max_new_tokens,
        max_num_seqs=rows,
        num_speculative_tokens=drafted,
    )
    return results, summarise(results, time.perf_counter() - started)


def _report(pair: Pair, ways: Sequence[Way]) -> dict[str, Any]:
    return {
        "equal": all(way.match.equal for way in ways),
        "runs": [way.as_dict() for way in ways],
        "texts": [result.text for result in ways[-1].results],
        "settings": pair.describe(),
    }


def _print(ways: Sequence[Way], prompts: Sequence[str]) -> None:
    console = stdout()
    console.print(_table(ways))
    for result in ways[-1].results[SAMPLES]:
        sample = Text(prompts[result.index], style="dim")
        console.print(sample.append(_shorten(result.text or ""), style="not dim"))
        console.print()


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _table(ways: Sequence[Way]) -> Table:
    table = Table(title=f"{ROWS} prompts, greedy, prefill included")
    table.add_column("decoding", no_wrap=True)
    for name in ("tokens/s", "speed-up", "accepted", "mean acc. length", "same tokens"):
        table.add_column(name, justify="right")
    for way in ways:
        stats = way.summary.stats
        drafted = stats.num_draft_tokens > 0
        table.add_row(
            way.name,
            f"{way.summary.tokens_per_second:.1f}",
            f"{way.speedup:.2f}x",
            percent(stats.draft_acceptance_rate) if drafted else "-",
            f"{stats.mean_acceptance_length:.2f}" if drafted else "-",
            f"{way.match.exact}/{way.match.rows}",
        )
    return table
