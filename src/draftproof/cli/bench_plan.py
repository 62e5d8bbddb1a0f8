"""What `draftproof bench paper --dry-run` prints: plan, memory and expected time."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from draftproof.cli.console import stdout

if TYPE_CHECKING:
    from draftproof.bench.planning import Estimate
    from draftproof.bench.settings import Settings


def show_plan(
    settings: Settings, names: tuple[str, str], device: str, *, json: bool, as_in_paper: bool
) -> None:
    """Print what would be run on target and draft `names`; loads and downloads nothing.

    as_in_paper: expect the time of the paper's GPU, not of `device`
    """
    import torch

    from draftproof.bench.pairs import facts_of
    from draftproof.bench.planning import A100, Planner, this_machine
    from draftproof.bench.settings import cells_of

    planner = Planner(
        target=facts_of(names[0]),
        draft=facts_of(names[1]),
        speed=A100 if as_in_paper else this_machine(torch.device(device)),
        max_input_len=settings.max_input_len,
    )
    estimates = planner.estimate(cells_of(settings, settings.arrival_rate))
    weights = planner.weight_bytes(settings.dtypes[0])
    if json:
        typer.echo(dumps(_plan_as_dict(settings, names, estimates, weights, planner.speed.name)))
        return
    console = stdout()
    console.print(_plan_table(estimates))
    console.print(
        f"{names[0]} and {names[1]}: weights {size(weights)}; "
        f"about {duration(sum(e.seconds for e in estimates))} on {planner.speed.name} (rough)"
    )


def _plan_as_dict(
    settings: Settings,
    names: tuple[str, str],
    estimates: list[Estimate],
    weights: float,
    machine: str,
) -> dict[str, Any]:
    return {
        "target": names[0],
        "draft": names[1],
        "settings": asdict(settings),
        "weight_bytes": weights,
        "kv_bytes": max(estimate.kv_bytes for estimate in estimates),
        "seconds": sum(estimate.seconds for estimate in estimates),
        "machine": machine,
        "runs": [estimate.cell.label for estimate in estimates],
    }


def _plan_table(estimates: list[Estimate]) -> Table:
    table = Table(title="Plan")
    for name in ("section", "method", "B", "K", "prompts", "new tokens", "KV cache", "time"):
        table.add_column(name, justify="left" if name in ("section", "method") else "right")
    for estimate in estimates:
        cell = estimate.cell
        table.add_row(
            cell.section,
            cell.way,
            str(cell.batch_size),
            str(cell.drafted),
            str(cell.num_prompts),
            str(cell.max_new_tokens),
            size(estimate.kv_bytes),
            duration(estimate.seconds),
        )
    return table


def size(count: float) -> str:
    """Bytes, for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    """Seconds, for people."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
