"""`draftproof doctor`: what this machine can promise, and what the promise costs."""

from __future__ import annotations

import gc
import json as jsonlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, put, reports_errors, stdout
from draftproof.cli.loading import open_target

if TYPE_CHECKING:
    from draftproof.bench.doctor import Finding

DEFAULT_DTYPES = (opt.Dtype.FLOAT32, opt.Dtype.BFLOAT16, opt.Dtype.FLOAT16)

TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        "--model",
        help="Model to promise something for: a folder or a hub id. Without it: the embedded one.",
    ),
]
Dtypes = Annotated[
    list[opt.Dtype] | None,
    typer.Option(
        "--dtype",
        help="Number format to examine; may be given several times. Without it: float32, bfloat16 "
        "and float16.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Calibrate anew, whatever was kept.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of torch: a verdict holds for their number."),
]


@reports_errors
def command(
    target: TargetOption = None,
    dtype: Dtypes = None,
    fresh: Fresh = False,
    threads: Threads = None,
    device: opt.Device = "cpu",
    json: opt.JsonFlag = False,
) -> None:
    """Say what numerics="exact" promises on this machine, by which shapes, and at what cost.

    Per number format: whether the exact tier holds or which operation fails, with how many rows
    every kind of matrix product is called, the shapes of attention, and how much longer than
    fast a forward of 1, 4 and 8 rows takes, in per cent. Verdicts depend on the model's sizes,
    so name the model that you mean to use.

    Exit codes: 0 every format asked for is promised, 1 one is not, 2 nothing could be examined.
    """
    import torch

    from draftproof.bench.doctor import examine, surroundings
    from draftproof.models import demo_paths

    if threads is not None:
        torch.set_num_threads(threads)
    name = str(demo_paths()[0]) if target is None else target
    findings = []
    for wanted in dict.fromkeys(dtype or DEFAULT_DTYPES):
        findings.append(examine(open_target(name, wanted, device), fresh=fresh))
        gc.collect()  # a model and its hooks are a cycle; the next one needs the room
    about = {"target": name, **surroundings(torch.device(device))}
    if json:
        report = about | {"findings": [finding.as_dict() for finding in findings]}
        put(jsonlib.dumps(report, indent=2))
    else:
        _print(about, findings)
    raise typer.Exit(Exit.OK if all(f.promised for f in findings) else Exit.FAILED)


def _print(about: dict[str, Any], findings: list[Finding]) -> None:
    console = stdout()
    console.print(_promises(findings))
    for finding in findings:
        if finding.promised:
            console.print(_rows(finding))
    console.print(_costs(findings))
    for name, value in about.items():
        console.print(f"{name}: {value}", markup=False, soft_wrap=True)


def _promises(findings: list[Finding]) -> Table:
    table = Table(title='numerics="exact"')
    table.add_column("")
    for finding in findings:
        table.add_column(finding.dtype, overflow="fold")
    for name, words in _FACTS.items():
        table.add_row(name, *(words(finding) for finding in findings))
    return table


def _promise(finding: Finding) -> str:
    return "[green]yes" if finding.promised else f"[bold red]no:[/] {escape(str(finding.failing))}"


def _attention(name: str) -> Callable[[Finding], str]:
    return lambda finding: str(finding.attention.get(name) or ("any" if finding.promised else "-"))


def _barred(finding: Finding) -> str:
    from draftproof.bench.doctor import ranges

    barred, view = finding.attention.get("barred"), finding.attention.get("view", 1)
    return ranges(barred, range(view, max(barred) + 1, view)) if barred else "-"


def _calibration(finding: Finding) -> str:
    return "kept on disk" if finding.kept else f"{finding.seconds:.2f} s"


_FACTS: dict[str, Callable[[Finding], str]] = {
    "promised": _promise,
    "has a matrix kernel": lambda finding: "yes" if finding.has_kernel else "no: float32's",
    "tokens, multiple of": lambda finding: str(finding.tokens or "-"),
    "key view, multiple of": _attention("view"),
    "long key view, multiple of": _attention("long_view"),
    "key views left out": _barred,
    "queries, multiple of": _attention("queries"),
    "a row's tokens in one call": _attention("width"),
    "calibration": _calibration,
}


def _rows(finding: Finding) -> Table:
    table = Table(
        title=f"{finding.dtype}: rows of every kind of matrix product",
        caption="of the counts that were tried; others are filled up to the next one",
    )
    for name in ("product", "for instance", "rows"):
        table.add_column(name, overflow="fold")
    for rule in finding.products:
        table.add_row(rule.kind.replace("torch.", ""), rule.module, rule.rows)
    return table


def _costs(findings: list[Finding]) -> Table:
    table = Table(title="one forward of the target", caption="medians of forwards measured in turn")
    for name in ("dtype", "rows x tokens", "context", "fast ms", "exact ms", "exact costs"):
        table.add_column(name, justify="left" if name == "dtype" else "right")
    for finding in findings:
        for cost in finding.costs:
            table.add_row(
                finding.dtype,
                f"{cost.rows} x {cost.width}",
                str(cost.context),
                f"{cost.fast_ms:.1f}",
                f"{cost.exact_ms:.1f}",
                f"{cost.percent:+.1f} %",
            )
    return table
