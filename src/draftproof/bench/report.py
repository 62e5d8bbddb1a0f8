"""The reports: Markdown for people and diffs, one HTML file with plots that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.bench.results import Record, Results
from draftproof.bench.tables import Table, tables

TITLE = "Correctness and speed of batched speculative decoding"


def write_reports(folder: Path, records: Sequence[Record]) -> None:
    """`report.md` and `report.html` beside the results."""
    results = Results(records)
    made = tables(results)
    (folder / "report.md").write_text(markdown(made, facts(records)), encoding="utf-8")
    (folder / "report.html").write_text(html(results, made, facts(records)), encoding="utf-8")


def facts(records: Sequence[Record]) -> dict[str, str]:
    """What all tables depend on; several values where runs differ."""
    lines: dict[str, list[str]] = {}
    for record in records:
        cell, places = record["cell"], (record["models"], record["environment"])
        values = {name: value for place in places for name, value in place.items()}
        values |= {"K": cell["k"], "runs": len(records)}
        for name, value in values.items():
            lines.setdefault(name, []).append(str(value))
    return {name: ", ".join(dict.fromkeys(values)) for name, values in lines.items()}


def markdown(made: Sequence[Table], about: Mapping[str, str]) -> str:
    """All tables but the wide ones."""
    parts = [f"# {TITLE}\n", *(f"- {name}: {value}" for name, value in about.items()), ""]
    for table in made:
        if not table.wide:
            parts += [f"## {table.title}\n", table.note, "", *table_lines(table), ""]
    return "\n".join(parts)


def table_lines(table: Table) -> Iterator[str]:
    """One table in Markdown."""
    yield _line(table.columns)
    yield _line(["---"] * len(table.columns))
    yield from map(_line, table.rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def html(results: Results, made: Sequence[Table], about: Mapping[str, str]) -> str:
    """All tables and plots in one page."""
    import jinja2

    from draftproof.bench.plots import plots

    loader = jinja2.PackageLoader("draftproof.bench")
    template: Any = jinja2.Environment(loader=loader, autoescape=True).get_template("report.html")
    page: str = template.render(title=TITLE, facts=about, tables=made, plots=plots(results))
    return page
