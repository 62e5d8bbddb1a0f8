"""The trace in the walkthrough is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import draftproof
from draftproof.models import demo_paths
from draftproof.testing import Recorder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "walkthrough.md"


def written() -> list[str]:
    """The lines of the page's table, spaces aside."""
    table = re.search(r"round  row  cached .*\n((?: +\d.*\n)+)", PAGE.read_text(encoding="utf-8"))
    assert table is not None
    return [" ".join(line.split()) for line in table[1].splitlines()]


def test_the_trace_is_what_happens() -> None:
    recorder = Recorder()
    pair = draftproof.load(*demo_paths(), dtype="float32", numerics="fast")
    prompts = ["A list is", "In the"]
    pair.generate(prompts, max_new_tokens=12, num_speculative_tokens=3, observers=[recorder])
    happened = [
        f"{event.number} {row.index} {row.kv_len} {row.fed} "
        f"{' '.join(map(str, row.drafts)) or '-'} {row.accepted} {' '.join(map(str, row.emitted))}"
        for event in recorder.events
        for row in event.rows
    ]
    assert happened == written()
