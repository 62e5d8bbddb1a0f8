"""The `draftproof` command: one file per sub-command.

Nothing here imports torch or transformers before a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from draftproof.cli import (
    bench,
    check,
    demo,
    doctor,
    forensics_selftest,
    generate,
    replay,
    run_batch,
    serve,
)
from draftproof.cli.console import Exit

app = typer.Typer(
    name="draftproof",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # every option is an environment variable too: DRAFTPROOF_SERVE_PORT, ...
    context_settings={"auto_envvar_prefix": "DRAFTPROOF"},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from draftproof import __version__

        typer.echo(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def _draftproof(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Correct batched speculative decoding for Hugging Face transformers models."""


app.command("demo")(demo.command)
app.command("generate")(generate.command)
app.command("run-batch")(run_batch.command)
app.command("serve")(serve.command)
app.command("check")(check.command)
app.command("doctor")(doctor.command)
app.add_typer(bench.app, name="bench")
app.command("forensics-selftest")(forensics_selftest.command)
app.command("replay")(replay.command)


def main() -> None:
    """Run the command line; `python -m draftproof` is the same program.

    Python ends with 1 after an exception, which means a bug found to `check` and lines that failed
    to `generate`: a crash gets an exit code of its own.
    """
    try:
        app(prog_name="draftproof")
    except Exception:
        traceback.print_exc()
        sys.exit(Exit.CRASHED)
