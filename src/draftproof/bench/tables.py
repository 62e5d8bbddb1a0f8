"""The tables of the report, from the records of `results.jsonl` alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftproof.bench.cells import PLAIN
from draftproof.bench.clocks import PARTS
from draftproof.bench.metrics import (
    acceptance_by_position,
    expected_emitted,
    percentile,
    predicted_speedup,
)
from draftproof.bench.results import (
    Agreement,
    Record,
    Results,
    baseline,
    decode_rate,
    per_token,
    share,
    step_cost,
    wall_rate,
)
from draftproof.bench.settings import GRID, REALIGNMENT, SERVING, SHARES, WINDOWS


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells are text. `wide` tables are folded away in the HTML report and left out in Markdown."""

    name: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    wide: bool = False


def tables(results: Results) -> list[Table]:
    """Every table for which there are runs."""
    made = (
        _match(results),
        _categories(results),
        _throughput(results),
        _shares(results),
        _acceptance(results),
        _windows(results),
        _serving(results),
        _realignment(results),
        _problems(results),
    )
    return [table for table in made if table.rows]


def _match(results: Results) -> Table:
    rows = []
    for record in results.of(GRID):
        found = results.agreement(record)
        if found is not None:
            repeatable = "yes" if record["repeatable"] else "NO"
            rows.append([*_names(record), *_agreement(found), repeatable])
    return Table(
        name="match",
        title="Same tokens as plain decoding one at a time",
        note="Exact: whole outputs that are equal, with Wilson's 95 % interval. Partial: mean "
        "share of an output before its first different token. Repeatable: the same tokens in "
        "every repetition.",
        columns=[*NAMES, *AGREEMENT, "repeatable"],
        rows=rows,
    )


def _categories(results: Results) -> Table:
    rows = []
    for record in results.of(GRID):
        for category in dict.fromkeys(row["category"] for row in record["rows"]):
            found = results.agreement(record, category)
            if found is not None:
                rows.append([*_names(record), category, *_agreement(found)])
    return Table(
        name="categories",
        title="The same by category",
        note="As above, for each category of the prompts.",
        columns=[*NAMES, "category", *AGREEMENT],
        rows=rows,
        wide=True,
    )


# the formula is of methods that keep what each row accepted
PREDICTED = ("rows", "eqspec", "exspec")
AGREEMENT = ("exact", "exact %", "95 %", "partial %")


def _agreement(found: Agreement) -> list[str]:
    low, high = found.interval
    return [
        f"{found.exact}/{found.total}",
        percent(found.exact / found.total),
        f"{percent(low)} - {percent(high)}",
        percent(found.partial),
    ]


def _throughput(results: Results) -> Table:
    rows = [
        [
            *_names(record),
            f"{decode_rate(record):.1f}",
            f"{wall_rate(record):.1f}",
            times(results.speedup(record, batch_size=1)),
            times(results.speedup(record, way=baseline(record))),
            times(results.speedup(record, way=PLAIN, batch_size=1)),
        ]
        for record in results.of(GRID)
    ]
    return Table(
        name="throughput",
        title="Throughput",
        note="Tokens per second of rounds that only decode, and of the whole run with its prompts. "
        "The three ratios are of decoding: to the same method at B = 1, to plain decoding at the "
        "same B on the same layout, and to plain decoding one at a time.",
        columns=[*NAMES, "decode tok/s", "whole tok/s", "own B=1", "plain, same B", "plain, B=1"],
        rows=rows,
    )


def _shares(results: Results) -> Table:
    rows = [
        [*_names(record), *(percent(share(record, part)) for part in PARTS)]
        for record in results.of(GRID, SHARES)
        if record["cell"]["clocks"]
    ]
    return Table(
        name="shares",
        title="Where the time goes",
        note="Share of the time of decoding rounds; realign includes rolling back.",
        columns=[*NAMES, *(f"{part} %" for part in PARTS)],
        rows=rows,
    )


def _acceptance_row(results: Results, record: Record) -> list[str]:
    stats, k, a = record["stats"], record["cell"]["k"], per_token(record)
    cost = step_cost(record, results.like(record, way=baseline(record)))
    if record["cell"]["way"] not in PREDICTED:
        cost = None
    positions = acceptance_by_position(stats["acceptance_histogram"], k)
    return [
        *_names(record),
        percent(stats["draft_acceptance_rate"]),
        f"{stats['mean_acceptance_length']:.2f}",
        " ".join(f"{100 * value:.0f}" for value in positions),
        f"{a:.3f}",
        f"{expected_emitted(a, k):.2f}",
        "-" if cost is None else f"{cost:.3f}",
        times(None if cost is None else predicted_speedup(a, k, cost)),
        times(results.speedup(record, way=baseline(record))),
    ]


def _acceptance(results: Results) -> Table:
    records = [record for record in results.of(GRID) if record["stats"]["num_draft_tokens"]]
    rows = [_acceptance_row(results, record) for record in records]
    return Table(
        name="acceptance",
        title="Acceptance, and the formula's prediction",
        note="Rate: accepted / drafted (the paper's TAR). By position: per cent of rounds in which "
        "the draft token at 0, 1, ... was accepted. a: chance of a token after accepted ones; "
        "(1 - a^(K+1)) / (1 - a) tokens are expected per round. Predicted: that / (K c + 1) with "
        "c = draft step / plain target step, as if scoring K + 1 tokens cost as much as one.",
        columns=[
            *NAMES,
            "rate %",
            "mean length",
            "by position %",
            "a",
            "expected length",
            "c",
            "predicted",
            "measured",
        ],
        rows=rows,
    )


def _windows_row(record: Record) -> list[str]:
    cell, grouping = record["cell"], record["grouping"]
    rounds = sum(grouping.values()) if grouping else 0
    return [
        f"{cell['prompts']} {cell['length']}",
        cell["way"],
        str(cell["method_options"].get("window_size") or "-"),
        str(cell["batch_size"]),
        f"{decode_rate(record):.1f}",
        percent(share(record, "realign")),
        percent(grouping["grouped"] / rounds) if rounds else "-",
        percent(grouping["fallbacks"] / rounds) if rounds else "-",
        f"{record['realigned'].get('bytes', 0) / 2**20:,.0f}",
    ]


def _windows(results: Results) -> Table:
    rows = [_windows_row(record) for record in results.of(WINDOWS)]
    return Table(
        name="windows",
        title="ExSpec against EqSpec",
        note="Prompts of equal and of random length; grouped: rounds without any realignment.",
        columns=[
            "prompts",
            "method",
            "window",
            "B",
            "decode tok/s",
            "realign %",
            "grouped %",
            "fallback %",
            "realigned MiB",
        ],
        rows=rows,
    )


def _serving_row(record: Record) -> list[str]:
    cell, waits = record["cell"], [row["latency"] for row in record["rows"]]
    return [
        cell["way"],
        str(cell["batch_size"]),
        f"{cell['rate']:g}",
        f"{record['tokens'] / max(record['timeline']['clock'], 1e-9):.1f}",
        f"{sum(waits) / len(waits):.2f}",
        f"{percentile(waits, 0.5):.2f}",
        f"{percentile(waits, 0.99):.2f}",
    ]


def _serving(results: Results) -> Table:
    rows = [_serving_row(record) for record in results.of(SERVING)]
    return Table(
        name="serving",
        title="Simulated online serving",
        note="Poisson arrivals, the same for all. The clock is the sum of the rounds' own times "
        "and of idle time; latency is from arrival to the last token, in seconds.",
        columns=["method", "B", "requests/s", "tok/s", "mean s", "p50 s", "p99 s"],
        rows=rows,
    )


def _realignment(results: Results) -> Table:
    rows = [
        [
            str(record["cell"]["length"]),
            str(record["cell"]["batch_size"]),
            record["cell"]["way"],
            percent(share(record, "realign")),
            f"{decode_rate(record):.1f}",
            f"{record['realigned'].get('bytes', 0) / max(1, record['tokens']) / 2**20:.2f}",
        ]
        for record in results.of(REALIGNMENT)
    ]
    return Table(
        name="realignment",
        title="Realignment against batch size and context",
        note="Share of decoding time; MiB moved per generated token.",
        columns=["context", "B", "method", "realign %", "decode tok/s", "MiB per token"],
        rows=rows,
    )


def _problems(results: Results) -> Table:
    bad = [record for record in results.all if record["status"] != "ok"]
    rows = [[record["cell"]["section"], *_names(record), _problem(record)] for record in bad]
    return Table(
        name="problems",
        title="Runs without a result",
        note="A crash is a crash: it counts in no score above.",
        columns=["section", *NAMES, "what happened"],
        rows=rows,
    )


def _problem(record: Record) -> str:
    return f"{record['status']}: {record['error']}"


NAMES = ("dtype", "numerics", "method", "B")


def _names(record: Record) -> Iterator[str]:
    cell = record["cell"]
    dtype = record.get("settings", {}).get("dtype", cell["dtype"])
    yield from (dtype, cell["numerics"], cell["way"], str(cell["batch_size"]))


def percent(value: float) -> str:
    """A share in per cent, one digit."""
    return f"{100 * value:.1f}"


def times(value: float | None) -> str:
    """A ratio, or a dash."""
    return "-" if value is None else f"{value:.2f}x"
