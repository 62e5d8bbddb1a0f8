"""The tables of generated faults for the documentation, written between two marks of a page."""

from __future__ import annotations

from pathlib import Path

from draftproof.faultlab.generated.operators import OPERATORS, halves
from draftproof.faultlab.generated.report import GeneratedReport, Half, Outcome
from draftproof.faultlab.selftest_tables import between

BEGIN, END = "<!-- generated faults: begin -->", "<!-- generated faults: end -->"


def rewrite(page: Path, report: GeneratedReport) -> None:
    """Replace what stands between the marks. Raises InputError when they are missing."""
    between(page, BEGIN, END, tables(report))


def tables(report: GeneratedReport) -> str:
    """Counts, false alarms and the list of operators in Markdown."""
    return "\n\n".join([_counts(report), _correct(report), _operators()])


def _counts(report: GeneratedReport) -> str:
    heads = ["faults", "cases", *(one.value for one in Outcome)]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for half in Half:
        cases, counts = report.of(half), report.counts(half)
        if cases and half is not Half.CORRECT:
            shares = [f"{counts[one]} ({counts[one] / len(cases):.0%})" for one in Outcome]
            lines.append("| " + " | ".join((half.value, str(len(cases)), *shares)) + " |")
    return "\n".join(lines)


def _correct(report: GeneratedReport) -> str:
    correct = report.of(Half.CORRECT)
    forked = sum(one.forked for one in correct)
    return (
        f"Correct configurations: {len(correct)}, of which {forked} fork by rounding; false "
        f"alarms: {len(report.alarms)}. Seed {report.seed}."
    )


def _operators() -> str:
    held_out = {operator.name for operator in halves()[1]}
    lines = ["| part | operator | what is done wrong | right names | half |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for one in OPERATORS:
        half = "held out" if one.name in held_out else "open"
        right = ", ".join(sorted(one.right))
        lines.append(f"| {one.family} | `{one.name}` | {one.story} | {right} | {half} |")
    return "\n".join(lines)
