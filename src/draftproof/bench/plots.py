"""Plots of the report, as SVG text to be set into a page."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from draftproof.bench.clocks import PARTS
from draftproof.bench.metrics import acceptance_by_position, percentile
from draftproof.bench.results import Record, Results, decode_rate, share
from draftproof.bench.settings import GRID, REALIGNMENT, SERVING, SHARES, WINDOWS

SIZE = (7.0, 3.6)  # inches


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """One picture."""

    title: str
    svg: str


def plots(results: Results) -> list[Plot]:
    """Every plot for which there are runs."""
    makers = (_match, _throughput, _shares, _acceptance, _windows, _serving, _realignment)
    return [plot for maker in makers for plot in maker(results)]


def draw_plot(title: str, draw: Callable[[Any], None], **labels: str) -> Plot:
    """One picture with a legend beside it; `labels` as in `Axes.set`."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    axes.set(**labels)
    axes.grid(alpha=0.3)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Plot(title=title, svg=text[text.index("<svg") :])


def _lines(
    records: Sequence[Record],
    name: Callable[[Record], str],
    x: Callable[[Record], float],
    y: Callable[[Record], float],
) -> Callable[[Any], None]:
    """One line per name, through the points of its records."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        points[name(record)].append((x(record), y(record)))

    def draw(axes: Any) -> None:
        for label, pairs in points.items():
            axes.plot(*zip(*sorted(pairs), strict=True), marker="o", label=label)

    return draw


def _batch(record: Record) -> float:
    return float(record["cell"]["batch_size"])


def _way(record: Record) -> str:
    return str(record["cell"]["way"])


def _full_name(record: Record) -> str:
    cell = record["cell"]
    return f"{cell['way']} {record['settings']['dtype']} {cell['numerics']}"


def _match(results: Results) -> Iterator[Plot]:
    found = {record["key"]: results.agreement(record) for record in results.of(GRID)}
    records = [record for record in results.of(GRID) if found[record["key"]] is not None]

    def exact(record: Record) -> float:
        agreement = found[record["key"]]
        assert agreement is not None
        return 100 * agreement.exact / agreement.total

    if records:
        draw = _lines(records, _full_name, _batch, exact)
        yield draw_plot("Exact match", draw, xlabel="batch size", ylabel="% of outputs")


def _throughput(results: Results) -> Iterator[Plot]:
    if records := results.of(GRID):
        draw = _lines(records, _full_name, _batch, decode_rate)
        yield draw_plot("Throughput", draw, xlabel="batch size", ylabel="decode tokens/s")


def _shares(results: Results) -> Iterator[Plot]:
    """One stacked bar per method and batch size, of the first number format."""
    timed = [record for record in results.of(GRID, SHARES) if record["cell"]["clocks"]]
    records = [r for r in timed if _full_name(r).split()[1:] == _full_name(timed[0]).split()[1:]]
    labels = [f"{_way(record)} {_batch(record):.0f}" for record in records]

    def draw(axes: Any) -> None:
        bottom = [0.0] * len(records)
        for part in PARTS:
            heights = [100 * share(record, part) for record in records]
            axes.bar(labels, heights, bottom=bottom, label=part)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.tick_params(axis="x", labelrotation=90, labelsize="x-small")

    if records:
        yield draw_plot("Where the time goes", draw, ylabel="% of decoding time")


def _acceptance(results: Results) -> Iterator[Plot]:
    records = [r for r in results.of(GRID) if r["stats"]["num_draft_tokens"]]
    first = {_full_name(record): record for record in reversed(records)}

    def draw(axes: Any) -> None:
        for name, record in reversed(first.items()):
            k = record["cell"]["k"]
            values = acceptance_by_position(record["stats"]["acceptance_histogram"], k)
            axes.plot(range(k), [100 * value for value in values], marker="o", label=name)

    if records:
        yield draw_plot(
            "Acceptance by position",
            draw,
            xlabel="position of the draft token",
            ylabel="% of rounds",
        )


def _windows(results: Results) -> Iterator[Plot]:
    pooled = [r for r in results.of(WINDOWS) if r["cell"]["method_options"].get("window_size")]
    titles = {"ExSpec: speed": (decode_rate, "decode tokens/s"), "ExSpec: grouping": (_rate, "%")}
    for title, (value, label) in titles.items():
        if pooled:
            draw = _lines(pooled, lambda r: f"{r['cell']['prompts']} lengths", _window, value)
            yield draw_plot(title, draw, xlabel="window", ylabel=label)


def _window(record: Record) -> float:
    return float(record["cell"]["method_options"]["window_size"])


def _rate(record: Record) -> float:
    grouping = record["grouping"]
    return float(100 * grouping["grouped"] / max(1, sum(grouping.values())))


def _serving(results: Results) -> Iterator[Plot]:
    def p99(record: Record) -> float:
        return percentile([row["latency"] for row in record["rows"]], 0.99)

    if records := results.of(SERVING):
        draw = _lines(records, _way, _batch, p99)
        yield draw_plot("Serving: p99 latency", draw, xlabel="batch size", ylabel="seconds")


def _realignment(results: Results) -> Iterator[Plot]:
    def name(record: Record) -> str:
        return f"{_way(record)}, context {record['cell']['length']}"

    if records := results.of(REALIGNMENT):
        draw = _lines(records, name, _batch, lambda record: 100 * share(record, "realign"))
        yield draw_plot("Realignment", draw, xlabel="batch size", ylabel="% of decoding time")
