"""The output file of `generate`: one complete JSON line per request, and how to go on after a kill.

    OUT.jsonl             lines as rows finish, each flushed when written
    OUT.jsonl.meta.json   what was asked: settings, and a hash of the input; written first

A kill can leave one torn line at the end. Resuming drops it, so that its request is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import IO, Any

from draftproof.cli.inputs import Item
from draftproof.errors import InputError

FORMAT = 1


def fingerprint(items: Iterable[Item], settings: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for two runs to be parts of one output."""
    items = list(items)
    text = json.dumps([astuple(item) for item in items], sort_keys=True)
    digest = hashlib.sha256(text.encode("ascii")).hexdigest()
    return {
        "format": FORMAT,
        "requests": len(items),
        "input_sha256": digest,
        "settings": settings,
    }


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words."""
    if before.get("format") != now["format"]:
        return ["the file was written by another version of draftproof"]
    old, new = before.get("settings", {}), now["settings"]
    found = [
        f"{key} was {_value(old.get(key))}, now {_value(new.get(key))}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    if before.get("requests") != now["requests"]:
        found.append(f"the input had {before.get('requests')} prompts, now {now['requests']}")
    elif before.get("input_sha256") != now["input_sha256"]:
        found.append("the input has other content")
    return found


def _value(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)


class Journal:
    """An output file; `done` and `failed` are the indices that it holds from an earlier run.

    Making one only looks, and refuses what cannot be meant. `open` is the first to change files, so
    that a model that does not load costs nobody an old output.
    """

    def __init__(self, path: Path, meta: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
        self.path = path
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.dropped = 0
        self._meta = meta
        self._kept = b""
        self._file: IO[bytes] | None = None
        if resume and overwrite:
            raise InputError("give either --resume or --overwrite, not both")
        if not path.parent.is_dir():
            raise InputError(f"--output {path}: there is no folder {path.parent}")
        if resume:
            self._look_back()
        elif not overwrite:
            _refuse_to_lose(path)

    def open(self) -> None:
        """Begin to write, after the whole lines of an earlier run if it is resumed."""
        _replace(self.path, self._kept)  # first: old lines must never lie under a new meta
        _replace(meta_path(self.path), encode_line(self._meta))
        self._file = self.path.open("ab")

    def write(self, record: dict[str, Any]) -> None:
        """Append one line; it is out of this process when this returns."""
        assert self._file is not None, "open() comes first"
        self._file.write(encode_line(record))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _look_back(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        if data:
            _refuse_other_run(self.path, self._meta)
        lines = data.splitlines(keepends=True)
        good = [line for line in lines if self._keep(line)]
        self.dropped = len(lines) - len(good)
        self._kept = b"".join(good)

    def _keep(self, line: bytes) -> bool:
        """Note a whole line of this run; False for a torn one or for a request already seen."""
        record = _parse(line)
        index = record.get("index")
        if type(index) is not int or not 0 <= index < self._meta["requests"] or index in self.done:
            return False
        self.done.add(index)
        if "error" in record:
            self.failed.add(index)
        return True


def encode_line(record: dict[str, Any]) -> bytes:
    """One line of JSON; lone surrogates, which UTF-8 cannot hold, stay escaped."""
    try:
        return json.dumps(record, ensure_ascii=False).encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record).encode("ascii") + b"\n"


def meta_path(path: Path) -> Path:
    """The file beside the output that says what was asked."""
    return path.with_name(path.name + ".meta.json")


def _parse(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        return {}
    try:
        record = json.loads(line)
    except ValueError:  # also of bytes that are not UTF-8
        return {}
    return record if isinstance(record, dict) else {}


def _refuse_to_lose(path: Path) -> None:
    if path.exists() and path.stat().st_size > 0:
        raise InputError(f"{path} is not empty: --resume goes on with it, --overwrite starts anew")


def _refuse_other_run(path: Path, meta: dict[str, Any]) -> None:
    sidecar = meta_path(path)
    before = _read_meta(sidecar)
    if before is None:
        raise InputError(
            f"cannot resume {path}: {sidecar.name}, which says what was asked, is missing or "
            "damaged; --overwrite starts anew"
        )
    if found := changes(before, meta):
        raise InputError(f"cannot resume {path}: {'; '.join(found)}")


def _read_meta(sidecar: Path) -> dict[str, Any] | None:
    try:
        before = json.loads(sidecar.read_bytes())
    except (OSError, ValueError):
        return None
    return before if isinstance(before, dict) else None


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves either the old or the new content."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
