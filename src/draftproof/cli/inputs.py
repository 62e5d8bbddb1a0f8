"""Prompts from the command line, a file, a folder or stdin, as items with a stable key.

A line that cannot be used becomes an item with an `error`; it never stops the others. Files are
read in passes, a line at a time, and never held as a whole.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from draftproof.cli.console import note
from draftproof.cli.formats import SUFFIXES, Row, rows_of
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.schema import RequestError
    from draftproof.schema.lines import Line

Prompt: TypeAlias = "str | list[int] | list[dict[str, Any]]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where prompts come from; can be read as often as needed until it is closed.

    words:   prompts of the command line
    files:   files with their names for messages; open ones (stdin's copy) are read from the start
    labels:  further keys of lines that come back in the output
    chat:    texts are what a user says, for the model's chat template
    """

    words: Sequence[str] = ()
    files: Sequence[tuple[Path | IO[bytes], str]] = ()
    labels: Collection[str] = ()
    chat: bool = False
    batch: bool = False  # only lines of OpenAI's batch files are taken
    texts: bool = False  # a folder's: each .txt file is one prompt, and its name the id

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        for place, _ in self.files:
            if not isinstance(place, Path):
                place.close()

    def rows(self) -> Iterator[Row]:
        """Every line, in order. Raises InputError for a file that cannot be read."""
        for number, word in enumerate(self.words, start=1):
            yield Row(f"prompt {number}", word)
        for place, name in self.files:
            prefix = f"{name} " if len(self.files) > 1 else ""
            for row in self._of_file(place, name):
                yield Row(prefix + row.source, row.content, row.error) if row.source else row

    def _of_file(self, place: Path | IO[bytes], name: str) -> Iterator[Row]:
        if not isinstance(place, Path):
            place.seek(0)
            yield from rows_of(place, name, "")
            return
        suffix = _suffix(place)
        if self.texts and suffix == ".txt":
            yield _whole(place, name)
            return
        with place.open("rb") as file:
            yield from rows_of(file, name, suffix)


def open_source(
    prompts: Sequence[str] | None,
    source: str | None,
    *,
    chat: bool = False,
    labels: Collection[str] = (),
    batch: bool = False,
) -> Source:
    """The prompts of `--prompt`, `--input` (a file, a folder, `-`) or stdin.

    Raises InputError when the source is missing.
    """
    if prompts and source is not None:
        raise InputError("give either --prompt or --input, not both")
    how: dict[str, Any] = {"chat": chat, "labels": labels, "batch": batch}
    if prompts:
        return Source(words=prompts, **how)
    if source is None and sys.stdin.isatty():
        raise InputError("no prompts: give --prompt TEXT, --input FILE, or pipe them to stdin")
    if source is None or source == "-":
        return Source(files=[(_spooled(), "stdin")], **how)
    path = Path(source)
    if path.is_dir():
        files = [(file, file.name) for file in _files_of(path)]
        return Source(files=files, texts=True, **how)
    if not path.exists():
        raise InputError(f"--input {source}: no such file or folder")
    # a pipe can be read once only
    place = path if path.is_file() else _spooled(path)
    return Source(files=[(place, path.name)], **how)


def _spooled(path: Path | None = None) -> IO[bytes]:
    """A copy of what can be read once, in a file without a name."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # open until the run ends
    if path is None:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        return copy
    with path.open("rb") as stream:
        shutil.copyfileobj(stream, copy)
    return copy


def _files_of(folder: Path) -> list[Path]:
    """Files whose suffix is known, by name; others are left out, which is said."""
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    known = [path for path in found if path.is_file() and _suffix(path) in SUFFIXES]
    if others := [path.name for path in found if path not in known]:
        note(f"left out of {folder}: {', '.join(others)}", style="yellow")
    return known


def _suffix(path: Path) -> str:
    """`.jsonl` of `in.jsonl.gz`."""
    name = path.name.lower()
    for packed in (".gz", ".zst"):
        name = name.removesuffix(packed)
    return Path(name).suffix


def _whole(path: Path, name: str) -> Row:
    """A file of text as one prompt, named by the file."""
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        return Row("", {"id": name}, f"not UTF-8 (byte {error.start + 1})")
    return Row("", {"id": name, "text": text})


# -- items -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One request asked for.

    index:   position among all lines of the input, failed ones included
    key:     of its content, the same wherever the line stands; a repeated line has a number more
    source:  where it came from, for messages: "line 3", "prompt 1", a file name
    """

    index: int
    source: str
    key: str = ""
    line: Line | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    error: RequestError | None = None


def digest(row: Row) -> str:
    """Of a line's content: 32 characters."""
    text = json.dumps([row.content, row.error], sort_keys=True, default=str)
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def item_of(row: Row, index: int, key: str, source: Source) -> Item:
    """A line as a request, or with what is wrong with it."""
    from draftproof.schema import RequestError
    from draftproof.schema.lines import labels_of, parse_line

    labels = labels_of(row.content, source.labels)
    place = row.source or str(labels.get("id"))
    common: dict[str, Any] = {"index": index, "source": place, "key": key, "labels": labels}
    if row.error is not None:
        return Item(**common, error=RequestError(row.error))
    try:
        line = parse_line(row.content, chat=source.chat, labels=source.labels, batch=source.batch)
    except RequestError as error:
        return Item(**common, error=error)
    return Item(**common, line=line)
