"""`draftproof forensics-selftest`: inject every fault, and see that each is found and named."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, note, put, reports_errors, stdout

if TYPE_CHECKING:
    from draftproof.faultlab.selftest import SelfTest
    from draftproof.faultlab.selftest_case import Case

Quick = Annotated[
    bool, typer.Option("--quick", help="The smallest models; without it also the demo pair.")
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", help="Rewrite the tables between the marks of this page."),
]


@reports_errors
def command(quick: Quick = False, json: opt.JsonFlag = False, markdown: Markdown = None) -> None:
    """Inject every known fault and check that the forensics give each its right name.

    Then run correct configurations (architectures, dtypes, drafters, batch sizes, K) and check
    that none of them is called a bug.

    Exit codes: 0 every fault on the diagonal and no false alarm, 1 otherwise.
    """
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
