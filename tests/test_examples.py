"""Every example runs as it stands, is short, and shows what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHOWN = {
    "batch": "mean acceptance length",
    "stream": "row 1 ended by length",
    "transformers_generate": "the same tokens as plain decoding: True",
    "watch_rounds": "of 4 accepted",
    "own_drafter": "two tokens wrong",
    "train_and_generate": "5 of 5 are what model.generate gives",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert SHOWN[path.stem] in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 30
    assert text.startswith('"""')
