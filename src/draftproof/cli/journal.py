"""The output file of a bulk run: one complete JSON line per request, and how to go on after a kill.

    OUT.jsonl                     lines as rows finish, each written whole
    OUT.jsonl.meta.json           what was asked, and what drawn seeds derive from; written first
    OUT.jsonl.superseded.jsonl    lines of a resumed file whose requests are no longer asked for

Lines belong to requests by the key of their content (`survey`), not by their place: an input may be
mended or grow between two runs. A kill can leave one torn line at the end. Resuming drops it, as it
drops lines with an error, so that their requests are done again.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.cli.inputs import Item
from draftproof.cli.outfile import OutFile
from draftproof.errors import InputError

FORMAT = 2


def new_meta(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is written beside a new output: settings, and what a resumed run takes over.

    seed:    what the seeds of sampled requests derive from that have none of their own
    created: seconds since 1970
    """
    return {
        "format": FORMAT,
        "settings": dict(settings),
        "seed": random.SystemRandom().getrandbits(48),
        "created": int(time.time()),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the settings of two runs, in words."""
    if before.get("format") != FORMAT:
        return ["the file was written by another version of draftproof"]
    old, new = before.get("settings", {}), now["settings"]
    return [
        f"{key} was {_value(old.get(key))}, now {_value(new.get(key))}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _value(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kept line is, and what is to be changed in it (`index`), if anything."""

    offset: int
    length: int
    renumber: bool = False


@dataclass(slots=True)
class Found:
    """What an output holds from an earlier run.

    kept:        lines of requests that are asked for, by index
    superseded:  lines of others
    dropped:     torn lines, and lines of requests seen before
    failed:      lines with an error, whose requests are done again
    clean:       bytes at the beginning that are whole, kept lines
    """

    kept: dict[int, Place] = field(default_factory=dict)
    superseded: list[Place] = field(default_factory=list)
    dropped: int = 0
    failed: int = 0
    clean: int = 0


class Journal:
    """An output file; `done` are the indices that it holds from an earlier run.

    Making one locks the file, looks, and refuses what cannot be meant. `open` is the first to
    change files, so that a model that does not load costs nobody an old output.

    key_of:  of an output line, None if it has none
    """

    def __init__(
        self,
        path: Path,
        meta: dict[str, Any],
        index_of: Mapping[str, int],
        key_of: Callable[[Mapping[str, Any]], str | None],
        *,
        resume: bool,
        overwrite: bool,
    ) -> None:
        if resume and overwrite:
            raise InputError("give either --resume or --overwrite, not both")
        self.path, self.meta = path, meta
        self._file = OutFile(path)
        self._index_of, self._key_of = index_of, key_of
        self._resume, self._written = resume, dict[int, Place]()
        self.found = Found()
        try:
            if resume:
                self._look_back()
            elif not overwrite and self._file.size:
                raise InputError(
                    f"{path} is not empty: --resume goes on with it, --overwrite starts anew"
                )
        except BaseException:
            self._file.close()
            raise

    @property
    def done(self) -> set[int]:
        """Indices of requests that need nothing more."""
        return set(self.found.kept)

    def open(self) -> None:
        """Begin to write, after the whole lines of an earlier run if it is resumed."""
        self._file.refuse_changes()
        if self._resume:
            self._keep_what_is_good()
        else:
            self._file.truncate(0)  # first: old lines must never lie under a new meta
        _write_meta(meta_path(self._file.path), self.meta)

    def write(self, item: Item, record: Mapping[str, Any]) -> None:
        """Append one line; it is out of this process when this returns.

        Raises InputError when it cannot be written; the file then ends with the line before.
        """
        line = encode_line(record)
        place = Place(self._file.size, len(line))
        try:
            self._file.append(line)
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}; {len(self._written)} finished lines are safe, "
                "--resume does the rest"
            ) from error
        self._written[item.index] = place

    def sort(self) -> None:
        """Put the lines in the order of the input, in one step.

        Raises InputError when there is no room for a second copy; the lines stay as they are.
        """
        places = self._written
        order = sorted(places)
        if list(places) == order:
            return
        try:
            self._file.replace(self._file.read(places[i].offset, places[i].length) for i in order)
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}; all lines are there in the order they finished, "
                "--resume --ordered sorts them"
            ) from error

    def close(self) -> None:
        """Close the file and give it free."""
        self._file.close()

    # -- an earlier run

    def _look_back(self) -> None:
        before = _read_meta(meta_path(self._file.path))
        if not self._file.size and (before is None or changes(before, self.meta)):
            return  # nothing was done yet
        before = _refuse_other_run(self.path, self._file.path, self.meta)
        self.meta = {**self.meta, "seed": before["seed"], "created": before["created"]}
        for offset, line in self._file.lines():
            self._look_at(offset, line)
        found = self.found
        if found.superseded and not found.kept:
            raise InputError(
                f"cannot resume {self.path}: none of its {len(found.superseded)} lines belongs to "
                "a request of this input; --overwrite starts anew"
            )

    def _look_at(self, offset: int, line: bytes) -> None:
        found, record = self.found, _parse(line)
        key = self._key_of(record)
        if key is None:
            found.dropped += 1
        elif record.get("error") is not None:
            found.failed += 1
        elif (index := self._index_of.get(key)) is None:
            found.superseded.append(Place(offset, len(line)))
        elif index in found.kept:
            found.dropped += 1
        else:
            renumber = record.get("index", index) != index
            found.kept[index] = Place(offset, len(line), renumber)
            if found.clean == offset and not renumber:
                found.clean += len(line)

    def _keep_what_is_good(self) -> None:
        found = self.found
        if found.superseded:
            aside = superseded_path(self._file.path)
            with aside.open("ab") as file:
                for place in found.superseded:
                    file.write(self._file.read(place.offset, place.length))
        kept = sum(place.length for place in found.kept.values())
        if kept == found.clean:  # nothing is to be changed but a torn end
            self._file.truncate(found.clean)
            self._written = dict(found.kept)
        else:
            self._file.replace(self._kept_lines())

    def _kept_lines(self) -> Iterator[bytes]:
        offset = 0
        for index, place in self.found.kept.items():
            line = self._file.read(place.offset, place.length)
            if place.renumber:
                line = encode_line({**json.loads(line), "index": index})
            self._written[index] = Place(offset, len(line))
            offset += len(line)
            yield line


def encode_line(record: Mapping[str, Any]) -> bytes:
    """One line of JSON; lone surrogates, which UTF-8 cannot hold, stay escaped."""
    try:
        return json.dumps(record, ensure_ascii=False, default=str).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, default=str).encode("ascii") + b"\n"


def meta_path(path: Path) -> Path:
    """The file beside the output that says what was asked."""
    return path.with_name(path.name + ".meta.json")


def superseded_path(path: Path) -> Path:
    """The file beside the output for lines of requests that are no longer asked for."""
    return path.with_name(path.name + ".superseded.jsonl")


def _parse(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        return {}
    try:
        record = json.loads(line)
    except ValueError:  # also of bytes that are not UTF-8
        return {}
    return record if isinstance(record, dict) else {}


def _refuse_other_run(path: Path, real: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    sidecar = meta_path(real)
    before = _read_meta(sidecar)
    if before is None:
        raise InputError(
            f"cannot resume {path}: {sidecar.name}, which says what was asked, is missing or "
            "damaged; --overwrite starts anew"
        )
    if found := changes(before, meta):
        raise InputError(f"cannot resume {path}: {'; '.join(found)}")
    return before


def _read_meta(sidecar: Path) -> dict[str, Any] | None:
    try:
        before = json.loads(sidecar.read_bytes())
    except (OSError, ValueError):
        return None
    return before if isinstance(before, dict) else None


def _write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Write a file so that a kill leaves either the old or the new content."""
    temporary = path.with_name(f".{path.name}.draftproof.tmp")
    try:
        temporary.write_bytes(encode_line(meta))
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
