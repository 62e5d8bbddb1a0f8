"""The public face: what `draftproof.__all__` says, resolves and explains itself."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import draftproof

ROOT = Path(__file__).resolve().parent.parent


def public_names(module: ModuleType) -> set[str]:
    """What tab completion offers of a module, less its submodules and private names."""
    names = [name for name in dir(module) if not name.startswith("_")]
    return {name for name in names if not inspect.ismodule(getattr(module, name))}


def undocumented(name: str, value: Any) -> list[str]:
    """Which of a public class or function and its own public members have no docstring."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return []
    bare = [] if _has_doc(name, value) else [name]
    members = vars(value).items() if inspect.isclass(value) else ()
    return bare + [
        f"{name}.{key}"
        for key, member in members
        if not key.startswith("_") and _is_own(member) and not (member.__doc__ or "").strip()
    ]


def _is_own(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))


def _has_doc(name: str, value: Any) -> bool:
    # A dataclass without a docstring is given its signature as one.
    doc = value.__doc__ or ""
    return bool(doc.strip()) and not doc.startswith(f"{name}(")


def test_all_is_sorted_and_has_no_duplicates() -> None:
    assert list(draftproof.__all__) == sorted(set(draftproof.__all__))


def test_all_is_the_public_names() -> None:
    listed = {name for name in draftproof.__all__ if not name.startswith("_")}
    assert public_names(draftproof) == listed


def test_names_that_are_not_exported_are_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        draftproof.no_such_name  # noqa: B018


def test_star_import_works_in_a_fresh_interpreter() -> None:
    code = "from draftproof import *; import draftproof; [globals()[n] for n in draftproof.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_is_the_one_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert draftproof.__version__ == project["version"]


@pytest.mark.parametrize("name", draftproof.__all__)
def test_every_export_resolves_and_is_documented(name: str) -> None:
    assert undocumented(name, getattr(draftproof, name)) == []


def test_missing_docstrings_are_caught() -> None:
    class Bare:
        def method(self) -> None: ...

        def _private(self) -> None: ...

        @property
        def width(self) -> int:
            return 1

    assert undocumented("Bare", Bare) == ["Bare", "Bare.method", "Bare.width"]
    assert undocumented("sorted", sorted) == []
