"""`draftproof forensics-selftest`: inject faults, and see that each is found and named."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, note, put, reports_errors, stdout
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.faultlab.generated.report import Examined, GeneratedReport
    from draftproof.faultlab.selftest import SelfTest
    from draftproof.faultlab.selftest_case import Case

Quick = Annotated[
    bool, typer.Option("--quick", help="The smallest models; without it also the demo pair.")
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", help="Rewrite the tables between the marks of this page."),
]
Generated = Annotated[
    int | None,
    typer.Option("--generated", min=1, help="Examine this many faults that are drawn at random."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the drawn faults.")]
HeldOut = Annotated[
    bool,
    typer.Option(
        "--held-out",
        help="As many drawn faults of the half that is held out, and half as many pairs.",
    ),
]
Correct = Annotated[
    int | None,
    typer.Option(
        "--correct", min=0, help="Drawn correct configurations. Default: twice --generated."
    ),
]


@reports_errors
def command(
    quick: Quick = False,
    generated: Generated = None,
    seed: Seed = 0,
    held_out: HeldOut = False,
    correct: Correct = None,
    json: opt.JsonFlag = False,
    markdown: Markdown = None,
) -> None:
    """Inject every known fault and check that the forensics give each its right name.

    Then run correct configurations (architectures, dtypes, drafters, batch sizes, K) and check
    that none of them is called a bug.

    With `--generated N` the faults are drawn from a seed instead: an operator, a circumstance, a
    model, requests, and a place to look from. They are counted as named rightly, useful (a bug,
    its kind not claimed), undecided or misleading. Half of the operators and all pairs are held
    out, and only counted: the decision must not be changed after looking at them.

    Exit codes: 0 every fault on the diagonal and no false alarm (with `--generated`: no false
    alarm), 1 otherwise.
    """
    if generated is not None:
        if quick:
            raise InputError("--quick is for the listed faults; --generated N says how many")
        raise typer.Exit(_generated(generated, seed, held_out, correct, json, markdown))
    if held_out or correct is not None:
        raise InputError("--held-out and --correct need --generated N")
    from draftproof.faultlab.selftest import selftest
    from draftproof.faultlab.selftest_tables import rewrite

    result = selftest(quick=quick, progress=_progress)
    if markdown is not None:
        rewrite(markdown, result)
    if json:
        put(jsonlib.dumps(result.as_dict(), indent=2))
    else:
        _print(result)
    raise typer.Exit(Exit.OK if result.passed else Exit.FAILED)


def _generated(
    count: int, seed: int, held_out: bool, correct: int | None, json: bool, markdown: Path | None
) -> Exit:
    from draftproof.faultlab.generated.report import generated
    from draftproof.faultlab.generated.tables import rewrite

    report = generated(count, seed, held_out=held_out, correct=correct, progress=_told)
    if markdown is not None:
        rewrite(markdown, report)
    if json:
        put(jsonlib.dumps(report.as_dict(), indent=2))
    else:
        _print_generated(report)
    return Exit.FAILED if report.alarms else Exit.OK


def _told(one: Examined) -> None:
    from draftproof.faultlab.generated.report import Half

    if one.half is Half.OPEN or one.alarm:
        what = " and ".join(one.settings["operators"]) or "correct"
        outcome = "FALSE ALARM" if one.outcome is None else one.outcome.value
        where = f"{one.settings['vantage']}, {one.settings['dtype']}"
        note(f"{outcome}: {what}, {where}: {one.verdict} ({one.rule}; {one.seconds:.1f} s)")


def _print_generated(report: GeneratedReport) -> None:
    from draftproof.faultlab.generated.report import Half, Outcome

    console = stdout()
    table = Table(title=f"generated faults, seed {report.seed}")
    table.add_column("faults")
    for name in ("cases", *(one.value for one in Outcome)):
        table.add_column(name, justify="right")
    for half in Half:
        cases = report.of(half)
        if cases and half is not Half.CORRECT:
            counts = report.counts(half)
            table.add_row(half.value, str(len(cases)), *(str(counts[one]) for one in Outcome))
    console.print(table)
    correct = report.of(Half.CORRECT)
    forked = sum(one.forked for one in correct)
    console.print(
        f"false alarms: {len(report.alarms)} in {len(correct)} correct configurations, "
        f"of which {forked} fork by rounding"
    )
    console.print(f"{report.pace:.1f} s per examination")
    for one in report.left_out:
        console.print(f"not on this machine: {one}", markup=False, soft_wrap=True)


def _progress(case: Case) -> None:
    if case.expected is not None or not case.right:
        found = case.found.value if case.found is not None else case.cause.value
        mark = "ok" if case.right else "WRONG"
        note(f"{mark}: {case.scenario}, {case.name}: {found} ({case.seconds:.1f} s)")


def _print(result: SelfTest) -> None:
    console = stdout()
    table = Table(title="injected faults, by kind")
    table.add_column("injected")
    table.add_column("taken for")
    table.add_column("times", justify="right")
    for kind, row in result.matrix.items():
        for found, times in row.items():
            style = "" if found == kind.value else "bold red"
            table.add_row(kind.value, found, str(times), style=style)
    console.print(table)
    right = sum(case.right for case in result.faults)
    console.print(f"faults recognised: {right} of {len(result.faults)}")
    console.print(
        f"false alarms: {len(result.alarms)} in {len(result.correct)} correct configurations"
    )
    for one in result.left_out:
        console.print(f"not on this machine: {one}", markup=False, soft_wrap=True)
