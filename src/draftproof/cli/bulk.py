"""What `generate` and `run-batch` have in common: journal, run, what is said at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from draftproof.cli.console import Exit, note
from draftproof.cli.decoding import Run, Task, decode_into
from draftproof.cli.journal import Journal, superseded_path
from draftproof.cli.options import ModelOptions
from draftproof.cli.sinks import Sink
from draftproof.errors import InputError


def served_names(models: ModelOptions, more: Sequence[str] | None) -> list[str]:
    """What a request may call the model: as it was given, the name of its folder, names given."""
    folder = Path(models.target)
    found = [models.target, str(folder.resolve()), folder.resolve().name] if folder.is_dir() else []
    return list(dict.fromkeys([*(more or ()), models.target, *found]))


def refuse_same(source: str | None, output: Path | None) -> None:
    """Raises InputError when the output is the input, or lies in the folder that is the input."""
    if output is None or source is None or source == "-":
        return
    one, other = Path(source).resolve(), output.resolve()
    if one == other:
        raise InputError("--output is the input file")
    if one.is_dir() and other.parent == one:
        raise InputError("--output lies in the input folder, where the next run would read it")


def open_journal(
    path: Path,
    meta: dict[str, Any],
    task: Task,
    *,
    resume: bool,
    overwrite: bool,
) -> Journal:
    """The output, locked, and what is to be said of an earlier run."""
    index_of, key_of = task.survey.index_of, task.records.key_of
    journal = Journal(path, meta, index_of, key_of, resume=resume, overwrite=overwrite)
    found = journal.found
    if found.dropped:
        note(f"dropped {found.dropped} incomplete line(s) of {path}", style="yellow")
    if found.kept:
        note(f"{len(found.kept)} requests were already done")
    if found.failed:
        note(f"{found.failed} failed requests are tried again")
    if found.superseded:
        aside = superseded_path(path)
        note(
            f"{len(found.superseded)} lines belong to no request of the input any more: "
            f"moved to {aside}",
            style="yellow",
        )
    return journal


def exit_of(run: Run) -> Exit:
    """The exit code of a run that came to its end."""
    if run.summary.mismatches:
        return Exit.AUDIT
    return Exit.FAILED if run.failed else Exit.OK


def run_bulk(sink: Sink, task: Task, *, ordered: bool = False) -> Run:
    """Run to the end or to Ctrl-C, and say on stderr how far it came."""
    run = Run(total=task.survey.total)
    try:
        decode_into(sink, task, run)
        if ordered and isinstance(sink, Journal):
            sink.sort()
    except KeyboardInterrupt:
        how = "; --resume does the rest" if isinstance(sink, Journal) else ""
        note(f"interrupted: {run.finished} of {run.total} requests done{how}", style="yellow")
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        sink.close()
    failed = f", {run.failed} failed" if run.failed else ""
    note(run.summary.sentence() + failed)
    return run
