"""Tables and plots of `bench throughput` and `bench scaling`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.bench.clocks import DRAFT, PARTS, VERIFY
from draftproof.bench.plots import Plot, draw_plot
from draftproof.bench.report import table_lines
from draftproof.bench.results import Record, Results, share, wall_rate
from draftproof.bench.tables import Table, percent

Line = Mapping[str, Any]


def write(folder: Path, title: str, made: Sequence[Table], pictures: Sequence[Plot]) -> Path:
    """`report.md`, and the plots beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# {title}", ""]
    for table in made:
        if table.rows:
            parts += [f"## {table.title}", "", table.note, "", *table_lines(table), ""]
    for plot in pictures:
        name = plot.title.lower().replace(" ", "-").replace(":", "") + ".svg"
        (folder / name).write_text(plot.svg, encoding="utf-8")
        parts += [f"![{plot.title}]({name})", ""]
    (folder / "report.md").write_text("\n".join(parts), encoding="utf-8")
    return folder / "report.md"


def name(record: Record) -> str:
    """The way, K and the tier."""
    cell = record["cell"]
    k = "" if cell["way"] == "plain" else f" K={'auto' if cell['auto'] else cell['k']}"
    return f"draftproof {cell['way']}{k}, {cell['numerics']}"


def efficiency(record: Record) -> float:
    """Decoding speed over what it would be if nothing but the two models' forwards took time."""
    return share(record, DRAFT) + share(record, VERIFY)


def lines_of(results: Results) -> list[dict[str, Any]]:
    """Our runs in the form of the peers' lines."""
    return [
        {
            "peer": name(record),
            "mode": "",
            "batch": record["cell"]["batch_size"],
            "tok_per_s": round(wall_rate(record), 1),
            "exact_match": _match(results, record),
            "peak_mib": record["peak_mib"],
        }
        for record in results.ok
    ]


def _match(results: Results, record: Record) -> str:
    found = results.agreement(record)
    return "" if found is None else f"{found.exact}/{found.total}"


def throughput_tables(results: Results, peers: Sequence[Line]) -> list[Table]:
    """Speeds, ratios to every peer, and where our time goes."""
    peers = [line for line in peers if "error" not in line]
    return [_speeds([*lines_of(results), *peers]), _ratios(results, peers), rounds(results)]


def _grouped(lines: Sequence[Line]) -> dict[str, dict[int, Line]]:
    grouped: dict[str, dict[int, Line]] = {}
    for line in lines:
        words = " ".join(filter(None, (line["peer"], line["mode"])))
        grouped.setdefault(words, {})[line["batch"]] = line
    return grouped


def _speeds(lines: Sequence[Line]) -> Table:
    sizes = sorted({line["batch"] for line in lines})
    rows = []
    for words, found in _grouped(lines).items():
        cells = [_shown(found.get(size)) for size in sizes]
        peaks = [line["peak_mib"] for line in found.values() if line["peak_mib"] is not None]
        rows.append([words, *cells, f"{max(peaks):,}" if peaks else "-"])
    return Table(
        name="speeds",
        title="Tokens per second, reading the prompts included",
        note="In brackets: outputs equal to plain decoding one at a time in the same tier (of a "
        "peer: to its own). Peak: resident MiB of the process; ours is one process for all runs.",
        columns=["decoding", *(f"B = {size}" for size in sizes), "peak MiB"],
        rows=rows,
    )


def _shown(line: Line | None) -> str:
    return "-" if line is None else f"{line['tok_per_s']} ({line.get('exact_match') or '-'})"


def _ratios(results: Results, peers: Sequence[Line]) -> Table:
    theirs = _grouped(peers)
    rows = [
        [
            name(record),
            str(record["cell"]["batch_size"]),
            *(_ratio(record, found.get(record["cell"]["batch_size"])) for found in theirs.values()),
        ]
        for record in results.ok
    ]
    return Table(
        name="ratios",
        title="Our speed over the peers', at the same batch size",
        note="From this run on this machine.",
        columns=["decoding", "B", *theirs],
        rows=rows if theirs else [],
    )


def _ratio(record: Record, line: Line | None) -> str:
    return "-" if line is None else f"{wall_rate(record) / max(line['tok_per_s'], 1e-9):.2f}"


def rounds(results: Results) -> Table:
    """What a decoding round is made of."""
    rows = []
    for record in results.ok:
        line, stats = record["timeline"], record["stats"]
        count = max(1, line["decode_rounds"])
        drafted = stats["num_draft_tokens"]
        rate = stats["num_accepted_draft_tokens"] / max(1, drafted)
        rows.append(
            [
                name(record),
                str(record["cell"]["length"] or "as they are"),
                str(record["cell"]["batch_size"]),
                f"{1e3 * line['decode'] / count:.1f}",
                *(percent(share(record, part)) for part in PARTS),
                percent(efficiency(record)),
                percent(rate) if drafted else "-",
                f"{line['decode_tokens'] / count / record['cell']['batch_size']:.2f}",
            ]
        )
    return Table(
        name="rounds",
        title="A decoding round",
        note="Shares of the time of rounds in which no prompt was read. draft and verify are the "
        "two models' forwards alone; efficiency is their sum: speed over what they alone allow.",
        columns=[
            "decoding",
            "prompt",
            "B",
            "ms",
            *PARTS,
            "efficiency",
            "accepted",
            "tokens per row",
        ],  # fmt: skip
        rows=rows,
    )


def throughput_plots(results: Results, peers: Sequence[Line]) -> list[Plot]:
    """Speed and efficiency against the batch size, and a round's parts."""
    usable = [line for line in peers if "error" not in line]
    speeds = {
        words: [(size, line["tok_per_s"]) for size, line in sorted(found.items())]
        for words, found in _grouped([*lines_of(results), *usable]).items()
    }
    return [
        _curves("Throughput", speeds, "batch size", "tokens/s"),
        _curves("Efficiency", _points(results, "batch_size"), "batch size", "% in forwards"),
        _parts(results),
    ]


def scaling_plots(results: Results) -> list[Plot]:
    """A round's time against the context and against the batch size."""
    shown: dict[str, dict[str, list[tuple[float, float]]]] = {"length": {}, "batch_size": {}}
    others = {"length": "batch_size", "batch_size": "length"}
    for axis, curves in shown.items():
        for record in results.ok:
            cell, line = record["cell"], record["timeline"]
            words = f"{name(record)}, {cell[others[axis]]}"
            seconds = line["decode"] / max(1, line["decode_rounds"])
            curves.setdefault(words, []).append((cell[axis], 1e3 * seconds))
    labels = {"length": "tokens per prompt", "batch_size": "batch size"}
    return [
        _curves(f"Round against {labels[axis]}", curves, labels[axis], "ms per round")
        for axis, curves in shown.items()
    ]


def _points(results: Results, axis: str) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for record in results.ok:
        curves.setdefault(name(record), []).append((record["cell"][axis], 100 * efficiency(record)))
    return curves


def _curves(
    title: str, curves: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str
) -> Plot:
    def draw(axes: Any) -> None:
        for label, points in curves.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
        axes.set_ylim(bottom=0)

    return draw_plot(title, draw, xlabel=xlabel, ylabel=ylabel)


def _parts(results: Results) -> Plot:
    labels = [f"{name(record)[11:]}, B={record['cell']['batch_size']}" for record in results.ok]

    def draw(axes: Any) -> None:
        left = [0.0] * len(labels)
        for part in PARTS:
            widths = [100 * share(record, part) for record in results.ok]
            axes.barh(labels, widths, left=left, label=part)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.tick_params(axis="y", labelsize="x-small")

    return draw_plot("A round", draw, xlabel="% of decoding time")
