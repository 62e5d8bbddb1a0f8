"""The soak and the mutants: short forms, and that both can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftproof.executors.contents import SlotContents
from draftproof.testing import soak

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = json.loads((ROOT / "tests" / "mutations" / "mutants.json").read_text(encoding="utf-8"))


def test_random_traffic_is_what_each_row_is_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--requests", "120", "--minutes", "2", "--seed", "100"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["rows"] >= 120


def test_the_soak_finds_slots_that_are_taken_for_what_they_are_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that believes the row's own tokens, whatever the slots hold."""

    def believing(self: SlotContents, tokens: Any, preferred: int) -> tuple[int, int]:
        source = (preferred + 1) % self.rows
        return source, min(len(tokens), max(self.known[source], 0))

    monkeypatch.setattr(SlotContents, "longest_prefix", believing)
    monkeypatch.setattr(SlotContents, "copy", lambda self, source, row, tokens: None)
    assert soak.main(["--requests", "400", "--minutes", "2", "--seed", "100"]) == 1
    assert "FAILED seed" in capsys.readouterr().err


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["breaks"])
def test_a_mutant_applies_once(mutant: dict[str, Any]) -> None:
    text = (ROOT / "src" / "draftproof" / mutant["file"]).read_text(encoding="utf-8")
    assert text.count(mutant["old"]) == 1
    assert mutant["old"] != mutant["new"]


def test_there_are_enough_mutants_of_every_room() -> None:
    rooms = {mutant["file"].split("/")[0] for mutant in MUTANTS}
    assert len(MUTANTS) >= 40
    assert {"engine", "executors", "prefixes.py", "drafters", "verifiers", "processing"} <= rooms
