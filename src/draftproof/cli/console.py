"""What every command says the same way: errors, notes, exit codes."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from enum import IntEnum

import typer
from rich.console import Console
from rich.text import Text

from draftproof.errors import DraftproofError, InvariantError


class Exit(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1  # the command ran, and some lines failed or some tokens differ
    USAGE = 2  # nothing could be done as asked
    AUDIT = 4  # an audited output is not what the target alone writes
    CRASHED = 70  # an error of this program (EX_SOFTWARE of sysexits.h); never a verdict
    INTERRUPTED = 130  # Ctrl-C, as shells count it


def stderr() -> Console:
    """Made anew for every use: tests and shells may replace sys.stderr."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> Console:
    """For tables; text of models is written with `put`, which never wraps or colours."""
    return Console(highlight=False)


def put(text: str) -> None:
    """A result on stdout: UTF-8 in files and pipes on every system, unchanged line endings."""
    if sys.stdout.isatty():
        print(text)  # not typer.echo, which goes past a bar that is being drawn
    else:
        typer.echo(f"{text}\n".encode("utf-8", "replace"), nl=False)


def note(message: str, style: str = "") -> None:
    """One line on stderr, whatever line breaks and brackets the message holds."""
    stderr().print(Text(" ".join(message.split()), style=style))


class _Notes(logging.Handler):
    """The library's log as notes on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def show_log() -> None:
    """Show what the library has to say, such as the size of a cache before it is allocated."""
    log = logging.getLogger("draftproof")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes())


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the errors a user can meet into one red line and an exit code.

    A broken invariant is our bug and keeps its traceback.
    """

    @functools.wraps(command)
    def reporting(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except InvariantError:
            raise
        except (DraftproofError, OSError) as error:
            note(f"error: {error}", style="bold red")
            raise typer.Exit(Exit.USAGE) from None
        except KeyboardInterrupt:
            note("interrupted", style="yellow")
            raise typer.Exit(Exit.INTERRUPTED) from None

    return reporting
