"""`results.jsonl`: one line per finished run, appended as it finishes, so that a kill loses one."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from draftproof import __version__


@dataclass(frozen=True, slots=True)
class Journal:
    """A file of records; the last one of a key counts."""

    path: Path

    def records(self) -> list[dict[str, Any]]:
        """Every record by key, the latest of each; a torn last line is left out."""
        return list({record["key"]: record for record in self._lines()}.values())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the process was killed while it wrote this line
                continue
            if isinstance(record, dict) and "key" in record:
                yield record

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            if file.tell() and not self._ends_with_newline():
                file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures of a run depend on and the settings do not say."""
    return {
        "draftproof": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": _machine(device),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
