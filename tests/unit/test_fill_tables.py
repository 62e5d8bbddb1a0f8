"""Measured tables in the documentation are those of the committed results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "docs" / "paper.md"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill", ROOT / "scripts" / "fill_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_current(script: Any, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert script.fill(text) == text, f"run: python scripts/fill_tables.py {page.name}"


def record(key: str, batch_size: int, tokens: list[int]) -> dict[str, Any]:
    cell = {
        "section": "grid", "way": "plain", "batch_size": batch_size, "k": 5, "dtype": "float32",
        "numerics": "fast", "num_prompts": 1, "max_new_tokens": 2, "method_options": {},
        "prompts": "workload", "length": 0, "clocks": True, "rate": None,
    }  # fmt: skip
    line = {"decode": 1.0, "busy": 2.0, "clock": 2.0, "decode_tokens": 4, "decode_rounds": 2}
    parts = {"draft": 0.0, "verify": 0.9, "realign": 0.0, "rest": 0.1}
    names = ("torch", "transformers", "machine", "threads", "capability")
    return {
        "key": key, "cell": cell, "status": "ok", "models": {"target": "t", "draft": "d"},
        "environment": dict.fromkeys(names, "x"), "settings": {"dtype": "float32"},
        "repeatable": True, "tokens": len(tokens), "timeline": {**line, "parts": parts},
        "stats": {"num_draft_tokens": 0}, "realigned": {}, "grouping": None,
        "rows": [{"category": "all", "token_ids": tokens}],
    }  # fmt: skip


def test_marked_tables_are_replaced_and_the_rest_stays(script: Any, tmp_path: Path) -> None:
    lines = [record("a", 1, [1, 2]), record("b", 4, [1, 3])]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = (
        "before\n<!-- table: match from results.jsonl -->\nold\n<!-- end of table -->\n"
        "<!-- table: serving from results.jsonl -->\n<!-- end of table -->\nafter\n"
    )
    filled = script.fill(page, tmp_path)
    assert "| float32 | fast | plain | 4 | 0/1 | 0.0 | 0.0 - 79.3 | 50.0 | yes |" in filled
    assert "old" not in filled
    assert script.MISSING in filled
    assert filled.startswith("before\n")
    assert filled.endswith("after\n")
    assert script.fill(filled, tmp_path) == filled
