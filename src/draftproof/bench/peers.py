"""Other libraries on the same models, each by its own script in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftproof.bench.workloads import Question, spec_bench
from draftproof.errors import InputError

# name of a peer -> what its script is called with besides the models' folder and the length
MODES: Mapping[str, Sequence[str]] = {
    "transformers": ("",),
    "economize": ("",),
    "openvino": ("",),
    "vllm": ("plain", "draft"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """Scripts `run_NAME.py HOME [MODE] MAX_NEW_TOKENS` that print one JSON line per configuration:

        {"peer", "mode", "batch", "k", "tokens", "wall_s", "tok_per_s", "exact_match"}

    folder:   where the scripts are
    home:     the folder of both models
    pythons:  by name, for peers that need an environment of their own; the others run in this one
    """

    folder: Path
    home: Path
    max_new_tokens: int
    threads: int
    pythons: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """transformers, which is always there, and those whose Python was named."""
        unknown = self.pythons.keys() - MODES.keys()
        if unknown:
            known = ", ".join(MODES)
            raise InputError(f"peer {', '.join(sorted(unknown))}; choose from {known}")
        return [n for n in MODES if n in self.pythons or n == "transformers"]

    def run(self, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
        """Every line of every peer; one that fails gives a line that says so."""
        for name in self.names:
            for mode in MODES[name]:
                tell(" ".join(filter(None, (name, mode))))
                yield from self._script(name, mode)

    def _script(self, name: str, mode: str) -> Iterator[dict[str, Any]]:
        script = self.folder / f"run_{name}.py"
        if not script.is_file():
            raise InputError(f"{script}: no such script")
        words = [self.pythons.get(name, sys.executable), str(script), str(self.home)]
        words += [*filter(None, [mode]), str(self.max_new_tokens)]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"OMP_NUM_THREADS": str(self.threads), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        found, peak, error = _wait(process)
        yield from ({**line, "peak_mib": peak} for line in found)
        if process.returncode:
            yield {"peer": name, "mode": mode, "error": error}


def _wait(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], int | None, str]:
    """Its JSON lines, its peak memory in MiB, and the last line of what it complained about."""
    errors: list[str] = []
    peaks: list[int] = []
    ended = threading.Event()
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = process.stderr
    _measure(process.pid, peaks)  # a short process may have ended before a thread gets its turn
    reader = threading.Thread(target=lambda: errors.extend(stderr))
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks, ended))
    reader.start()
    sampler.start()
    lines = [json.loads(text) for text in process.stdout if text.startswith("{")]
    process.wait()
    ended.set()
    sampler.join()
    reader.join()
    process.stdout.close()
    stderr.close()
    complaint = next((text.strip() for text in reversed(errors) if text.strip()), "no message")
    return lines, max(peaks, default=None), complaint


def _sample(pid: int, peaks: list[int], ended: threading.Event) -> None:
    """Peak resident memory, MiB, of a process and those that it started, twice a second.

    `wait4` would not do: a new process begins with the peak of the one that it was forked from.
    """
    while not ended.wait(0.5):
        _measure(pid, peaks)


def _measure(pid: int, peaks: list[int]) -> None:
    found = [_high_water(one) for one in (pid, *_children(pid))]
    if any(found):
        peaks.append(sum(found) // 1024)


def _high_water(pid: int) -> int:
    """KiB; 0 where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    lines = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")]
    return int(lines[0]) if lines else 0


def _children(pid: int) -> list[int]:
    """All that descend from a process: an engine's workers are its engine's children."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        words = [(task / "children").read_text(encoding="utf-8").split() for task in tasks]
    except OSError:
        return []
    direct = [int(word) for line in words for word in line]
    return [*direct, *(found for child in direct for found in _children(child))]


def peer_questions(path: Path, count: int) -> list[Question]:
    """The questions that the peers' scripts decode: every 20th, from the 8th on."""
    chosen = spec_bench(path)[7::20]
    if count > len(chosen):
        raise InputError(f"{count} prompts wanted; beside peers there are {len(chosen)}")
    return chosen[:count]
