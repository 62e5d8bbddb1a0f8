"""A class name means one thing in the package; what still means two is listed, and only shrinks."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import draftproof

PACKAGE = Path(draftproof.__file__).parent
APART = {"forensics", "faultlab"}  # with vocabularies of their own
# Names with more than one class, and how many there are. To be renamed, never to grow.
SHARED = {
    "Journal": 2,
    "Outcome": 2,
    "Outputs": 2,
    "Question": 2,
    "Row": 2,
    "Settings": 3,
    "Switch": 2,
    "Trial": 2,
    "Verdict": 2,
}


def class_names(texts: Iterable[str]) -> Counter[str]:
    """How many classes have each public name, at any depth."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    names = (node.name for node in nodes if isinstance(node, ast.ClassDef))
    return Counter(name for name in names if not name.startswith("_"))


def shared(names: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in names.items() if count > 1}


def package_texts() -> list[str]:
    paths = (p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in APART)
    return [path.read_text(encoding="utf-8") for path in paths]


def test_no_more_names_are_shared_than_are_listed() -> None:
    assert shared(class_names(package_texts())) == SHARED, "rename, or lower the entry in SHARED"


def test_a_shared_name_is_caught() -> None:
    one, other = (
        "class Plan: ...\nclass _Own: ...",
        "def f():\n    class Plan: ...\nclass _Own: ...",
    )
    assert shared(class_names([one, other])) == {"Plan": 2}
