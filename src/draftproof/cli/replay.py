"""`draftproof replay`: run one row of a bundle again and show where it went wrong."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, put, reports_errors, stdout

if TYPE_CHECKING:
    from draftproof.forensics.replay import Replay, Step

Folder = Annotated[Path, typer.Argument(help="A folder that `check --bundle` wrote.")]
RowNumber = Annotated[
    int | None, typer.Option("--row", help="Which row; by default the one that forks first.")
]
Recorded = Annotated[
    bool, typer.Option("--recorded", help="Show the recorded transcript and run nothing.")
]
ASKED_AGAIN = ("engine:", "transformers:", "http://", "https://")  # SPECs; a file cannot be
BEFORE, AFTER = 3, 6  # tokens around a fork


@reports_errors
def command(
    bundle: Folder, row: RowNumber = None, recorded: Recorded = False, json: opt.JsonFlag = False
) -> None:
    """Run one row of a bundle again, in its batch, and show the round where it went wrong.

    A server is asked again and shows no rounds: then the tokens around the fork are shown.

    Exit codes: 0 the row equals the reference, 1 it does not, 2 nothing could be replayed.
    """
    from draftproof.forensics.bundle import read
    from draftproof.forensics.replay import replay, worst_row
    from draftproof.forensics.subjects.spec import parse

    content = read(bundle)
    rerun = content.candidate.startswith(ASKED_AGAIN) and not recorded
    subject = parse(content.candidate) if rerun else None
    shown = replay(content, worst_row(content) if row is None else row, subject)
    if json:
        put(jsonlib.dumps(shown.as_dict(), indent=2))
    else:
        _print(shown)
        _print_scores(bundle, shown)
    raise typer.Exit(Exit.OK if shown.fork is None else Exit.FAILED)


def _print(shown: Replay) -> None:
    console = stdout()
    title = f"row {shown.row}, {'run again' if shown.fresh else 'as recorded'}"
    console.print(_rounds(shown, title) if shown.steps else _tokens(shown, title))
    console.print(Text(_sentence(shown)))


def _tokens(shown: Replay, title: str) -> Table:
    """Both sides around the fork, token by token: for subjects that show no rounds."""
    table = Table(title=title)
    for name in ("token", "reference", "candidate"):
        table.add_column(name, justify="right")
    at = shown.fork or 0
    for place in range(max(0, at - BEFORE), at + AFTER):
        sides = [ids[place : place + 1] for ids in (shown.expected, shown.found)]
        if any(sides):
            words = [str(one[0]) if one else "the end" for one in sides]
            table.add_row(str(place), *words, style="bold red" if place == shown.fork else "")
    return table


def _rounds(shown: Replay, title: str) -> Table:
    table = Table(title=title)
    for name in ("round", "cached", "drafts", "target", "accepted", "emitted", "reference"):
        table.add_column(name)
    for step in shown.steps[: _last(shown)]:
        table.add_row(*_cells(step), style="bold red" if step is shown.culprit else "")
    return table


def _print_scores(folder: Path, shown: Replay) -> None:
    """The reference's likeliest tokens at the fork, as recorded."""
    from draftproof.forensics.bundle import top_at

    top = None if shown.fork is None else top_at(folder, "reference", shown.row, shown.fork)
    if top is not None:
        pairs = zip(top.ids, top.values, strict=True)
        words = ", ".join(f"{token}: {value:.4f}" for token, value in pairs)
        stdout().print(Text(f"the reference's scores there: {words}"))


def _last(shown: Replay) -> int:
    """Up to the first wrong round: what follows has another context."""
    culprit = shown.culprit
    return len(shown.steps) if culprit is None else culprit.number + 1


def _cells(step: Step) -> list[str]:
    def ids(values: tuple[int, ...]) -> str:
        return " ".join(map(str, values))

    return [
        str(step.number),
        str(step.kv_len),
        ids(step.drafts),
        ids(step.target_ids),
        str(step.accepted),
        ids(step.emitted),
        ids(step.expected),
    ]


def _sentence(shown: Replay) -> str:
    culprit = shown.culprit
    words = []
    if not shown.steps:
        words.append("the candidate shows no rounds")
        same = shown.fork is None
        words.append("all tokens agree" if same else f"token {shown.fork} is the first to differ")
    elif culprit is None:
        words.append("every round emitted what the reference has")
    else:
        words.append(
            f"round {culprit.number} is the first wrong one, at offset {culprit.first_wrong} "
            f"of its block (token {shown.fork})"
        )
    if shown.reproduced is False:
        words.append("it came out differently from the recorded run")
    elif shown.reproduced:
        words.append("it came out as recorded")
    return "; ".join(words)
