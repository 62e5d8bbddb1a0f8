"""Rows of the kinds of files that may be given as input."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

from draftproof.cli.streams import BLANK, chunks_of, lines_of
from draftproof.errors import InputError

MOST_JSON = 1 << 28  # bytes that one element of an array may take, or be unreadable for
MOST_FIELD = (1 << 31) - 1  # characters of a field of a CSV file, as many as csv allows everywhere


@dataclass(frozen=True, slots=True)
class Row:
    """One line or element of a file.

    source:  where it came from, for messages: "line 3"
    content: a line's text, an object, or, with an error, what could not be read
    """

    source: str
    content: Any
    error: str | None = None


Reader = Callable[[Iterable[bytes], str], Iterator[Row]]


def reader_of(suffix: str, start: bytes) -> Reader:
    """How to read a text file, by its suffix; one of unknown suffix, as stdin, by how it starts."""
    if suffix in READERS:
        return READERS[suffix]
    if re.match(rb'\[\s*[{"]', start.lstrip(BLANK)):
        return json_values
    return json_lines if start.lstrip(BLANK).startswith(b"{") else text_lines


def rows_of(file: IO[bytes], name: str, suffix: str) -> Iterator[Row]:
    """Rows of a file that is open. Raises InputError when it cannot be read as what it is."""
    if suffix == ".parquet":
        return parquet_rows(file, name)
    chunks = chunks_of(file, name)
    start = b""
    while not start.strip(BLANK) and (chunk := next(chunks, b"")):
        start += chunk
    return reader_of(suffix, start)(chain([start], chunks), name)


# -- lines -----------------------------------------------------------------------------------------


def text_lines(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    """One prompt per line that is not blank."""
    for source, line in _numbered(chunks):
        yield _decoded(source, line)


def json_lines(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    """One JSON object per line that is not blank."""
    for source, line in _numbered(chunks):
        row = _decoded(source, line)
        yield row if row.error else _parsed(row)


def _numbered(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(lines_of(chunks), start=1):
        if line.strip(BLANK):
            yield f"line {number}", line


def _decoded(source: str, line: bytes) -> Row:
    try:
        return Row(source, line.decode("utf-8"))
    except UnicodeDecodeError as error:
        shown = line.decode("utf-8", "backslashreplace")
        return Row(source, shown, f"not UTF-8 (byte {error.start + 1})")


def _parsed(row: Row) -> Row:
    from draftproof.schema import RequestError, parse_json

    try:
        content = parse_json(row.content)
    except RequestError as error:
        return Row(row.source, row.content, str(error))
    good = isinstance(content, dict)
    return Row(row.source, content, None if good else "expected a JSON object")


# -- a JSON array ----------------------------------------------------------------------------------


def json_values(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    """Elements of an array, or JSON values one after the other, an element at a time.

    Raises InputError where the JSON breaks: what comes after cannot be told.
    """
    text = _Text(chunks, name)
    in_array = text.skip() == "["
    if in_array:
        text.take()
    number = 0
    while (character := text.skip()) not in ("", "]"):
        number += 1
        yield _element(f"element {number}", text.value(number))
        if in_array and text.skip() == ",":
            text.take()
            if text.skip() in ("", "]"):
                raise InputError(f"{name} is not JSON: nothing follows a comma")
        elif in_array and text.skip() not in ("", "]"):
            raise InputError(f"{name} is not JSON: no comma after element {number}")
    if in_array != (character == "]"):
        raise InputError(f"{name} is not JSON: the array does not end as it began")
    if in_array:
        text.take()
        if text.skip():
            raise InputError(f"{name} is not JSON: something follows the array")


def _element(source: str, written: str) -> Row:
    """Texts are prompts; anything else is read as a line would be."""
    row = Row(source, written)
    return Row(source, json.loads(written)) if written.startswith('"') else _parsed(row)


class _Text:
    """Characters of a file, read ahead as far as needed."""

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        import codecs

        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._decoder = json.JSONDecoder()
        self._name = name
        self._held = ""
        self._at = 0

    def skip(self) -> str:
        """The next character that is no blank, which stays; "" at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._read(1):
                return ""

    def take(self) -> None:
        """Go past the next character."""
        self._at += 1

    def value(self, number: int) -> str:
        """The next value as it is written."""
        while True:
            try:
                _, end = self._decoder.raw_decode(self._held, self._at)
                if end < len(self._held) or not self._read(1):  # a number may go on
                    written = self._held[self._at : end]
                    self._at = end
                    return written
            except (ValueError, RecursionError) as error:
                size = len(self._held) - self._at
                if size > MOST_JSON or not self._read(max(1, size)):
                    raise InputError(
                        f"{self._name} is not JSON: element {number}: {error}"
                    ) from error

    def _read(self, least: int) -> bool:
        """Read on by so many characters or more; False at the end."""
        parts, count = [], 0
        for chunk in self._chunks:
            try:
                parts.append(self._decode(chunk))
            except UnicodeDecodeError as error:
                raise InputError(f"{self._name} is not UTF-8: {error}") from error
            count += len(parts[-1])
            if count >= least:
                break
        self._held = self._held[self._at :] + "".join(parts)
        self._at = 0
        return count > 0


# -- tables ----------------------------------------------------------------------------------------

# columns that hold text as it is; others hold JSON, where it is not blank
TEXT_COLUMNS = ("prompt", "text", "id", "custom_id", "question_id", "category", "reference")


def csv_rows(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    """One request per record; the first line names the columns."""
    return _table(chunks, name, ",")


def tsv_rows(chunks: Iterable[bytes], name: str) -> Iterator[Row]:
    """As CSV, with tabs between fields."""
    return _table(chunks, name, "\t")


def _table(chunks: Iterable[bytes], name: str, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MOST_FIELD)
    # what is not UTF-8 spoils its own record only
    texts = (line.decode("utf-8", "surrogateescape") + "\n" for line in lines_of(chunks))
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    names = _next(reader, name)
    if names is None:
        return
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"{name}: the first line must give every column a name of its own")
    while (fields := _next(reader, name)) is not None:
        if fields:
            yield _record(f"line {reader.line_num}", names, fields)


def _next(reader: Any, name: str) -> list[str] | None:
    try:
        fields: list[str] | None = next(reader, None)
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: {error}") from error
    return fields


def _record(source: str, names: list[str], fields: list[str]) -> Row:
    if len(fields) != len(names):
        return Row(source, fields, f"{len(fields)} fields for {len(names)} columns")
    if any("\udc80" <= character <= "\udcff" for field in fields for character in field):
        return Row(source, fields, "not UTF-8")
    cells = zip(names, fields, strict=True)
    return Row(source, {key: _cell(key, text) for key, text in cells if text})


def _cell(name: str, text: str) -> Any:
    """A field's value: text in columns of texts, and where it is no JSON."""
    if name in TEXT_COLUMNS or (name == "stop" and not text.startswith("[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parquet_rows(file: IO[bytes], name: str) -> Iterator[Row]:
    """One request per record, by the names of the columns; nulls are left out."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{name} needs pyarrow: pip install 'draftproof[bulk]'") from error
    try:
        table = pyarrow.parquet.ParquetFile(file)
        number = 0
        for batch in table.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield Row(f"row {number}", {k: v for k, v in row.items() if v is not None})
    except pyarrow.ArrowException as error:
        raise InputError(f"{name} is not Parquet: {error}") from error


READERS: dict[str, Reader] = {
    ".txt": text_lines,
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_values,
    ".csv": csv_rows,
    ".tsv": tsv_rows,
}
SUFFIXES = (*READERS, ".parquet")
