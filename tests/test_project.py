"""What surrounds the code agrees with it: citation, templates, workflows, hooks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftproof import __version__

ROOT = Path(__file__).resolve().parent.parent
YAML = [
    ROOT / "CITATION.cff",
    ROOT / ".pre-commit-config.yaml",
    *sorted((ROOT / ".github").rglob("*.yml")),
]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project()["version"] == __version__
    assert citation["license"] == project()["license"]
    assert [reference["url"] for reference in citation["references"]] == [
        project()["urls"]["Paper"]
    ]


def test_workflows_run_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    texts = [path.read_text("utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")]
    texts.append(re.sub(r"(?m)^step ", "make ", (ROOT / ".ci/run").read_text("utf-8")))
    named = {t for text in texts for t in re.findall(r"\bmake ([a-z][a-z-]+)", text)}
    assert {"check", "test", "test-fallbacks", "test-wheel"} <= named <= targets


def test_the_oldest_torch_that_is_tested_is_the_lower_bound() -> None:
    (bound,) = (d for d in project()["dependencies"] if d.startswith("torch>"))
    (path,) = (ROOT / "constraints").glob("torch-*.txt")
    version = re.search(r"torch==([\d.]+)", path.read_text("utf-8"))
    assert version is not None
    assert version[1].removesuffix(".0") == bound.removeprefix("torch>=")
