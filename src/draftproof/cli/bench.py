"""`draftproof bench`: the group of commands that measure."""

from __future__ import annotations

import typer

from draftproof.cli import bench_paper, bench_throughput

app = typer.Typer(no_args_is_help=True, help="Measure correctness and speed, with reports.")
app.command("paper")(bench_paper.command)
app.command("throughput")(bench_throughput.throughput)
app.command("scaling")(bench_throughput.scaling)
