"""The self-test's tables for the documentation, written between two marks of a page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from draftproof.errors import InputError
from draftproof.faultlab.faults import FAULTS
from draftproof.faultlab.selftest import SelfTest
from draftproof.faultlab.selftest_case import Case
from draftproof.forensics.verdicts import Kind

BEGIN, END = "<!-- selftest: begin -->", "<!-- selftest: end -->"


def rewrite(page: Path, result: SelfTest) -> None:
    """Replace what stands between the marks. Raises InputError when they are missing."""
    between(page, BEGIN, END, tables(result))


def between(page: Path, begin: str, end: str, content: str) -> None:
    """Replace what stands between two marks of a page. Raises InputError without them."""
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise InputError(f"{page}: expected one {begin} and one {end}")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}", encoding="utf-8")


def tables(result: SelfTest) -> str:
    """Both tables in Markdown."""
    return "\n\n".join([_matrix(result), _faults(result), _correct(result)])


def _matrix(result: SelfTest) -> str:
    """Confusion matrix: a column is named by the number of its row."""
    kinds = [kind for kind in Kind if kind in result.matrix]
    others = sorted(
        {found for row in result.matrix.values() for found in row} - {kind.value for kind in kinds}
    )
    columns = [*(kind.value for kind in kinds), *others]
    heads = [*(str(n) for n in range(1, len(kinds) + 1)), *others]
    lines = ["| injected \\ taken for | " + " | ".join(heads) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for number, kind in enumerate(kinds, start=1):
        row = result.matrix[kind]
        cells = [str(row.get(column, "")) or "·" for column in columns]
        lines.append(f"| {number} {kind.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _faults(result: SelfTest) -> str:
    stories = {fault.name: fault.story for fault in FAULTS}
    lines = [
        "| fault | what is done wrong | on | taken for | rule |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in result.faults:
        story = stories.get(case.name, "")
        lines.append(
            f"| `{case.name}` | {story} | {case.scenario} | {_taken(case)} | {case.rule} |"
        )
    return "\n".join(lines)


def _taken(case: Case) -> str:
    found = case.found.value if case.found is not None else case.cause.value
    return found if case.right else f"**{found}**, not {case.expected and case.expected.value}"


def _correct(result: SelfTest) -> str:
    by_cause = Counter(case.cause.value for case in result.correct)
    told = ", ".join(f"{count} {cause}" for cause, count in sorted(by_cause.items()))
    head = (
        f"Correct configurations: {len(result.correct)}, of which {told}; "
        f"false alarms: {len(result.alarms)}."
    )
    ways = Counter((t.scenario, *t.name.split(", ")[:3], t.cause.value) for t in result.correct)
    lines = [
        "| model | dtype | numerics | method | verdict | times |",
        "|" + " --- |" * 5 + " ---: |",
    ]
    lines += ["| " + " | ".join((*way, str(times))) + " |" for way, times in ways.items()]
    left = [f"Not on the machine of this run: {one}." for one in result.left_out]
    return "\n\n".join([head, "\n".join(lines), *left])
