"""The documentation is true: commands exist, code runs, links lead somewhere, pages are current."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("[CS]*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
# Pages whose Python runs as it stands, on the embedded demo models.
RUNNABLE = [README, ROOT / "docs" / "index.md"]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)[^)]*\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def code_blocks(text: str, language: str) -> list[str]:
    return [body for tag, body in FENCE.findall(text) if tag == language]


def relative_links(text: str) -> list[str]:
    found = [a or b for a, b in LINK.findall(FENCE.sub("", text))]
    return [link for link in found if not re.match(r"[a-z][a-z+.-]*:", link)]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and the site give to headings."""
    plain = (re.sub(r"[^\w\- ]", "", h.lower()) for h in HEADING.findall(FENCE.sub("", text)))
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> Iterator[str]:
    for link in relative_links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            yield f"{link}: no such heading"


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_readme_shows_the_two_commands(command: str) -> None:
    assert re.search(rf"\b{command}\b", README.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_make_commands_exist(page: Path) -> None:
    targets = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    code = re.findall(r"`+[^`]*`+", page.read_text(encoding="utf-8"))
    named = {t for c in code for t in re.findall(r"\bmake ([a-z][a-z-]*)", c)}
    assert named <= targets


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_python_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page, in order, as one program: a later block may use an earlier one."""
    blocks = code_blocks(page.read_text(encoding="utf-8"), "python")
    assert blocks, f"{page.name} shows no Python"
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_links_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_command_line_reference_is_current() -> None:
    from draftproof.cli import app

    page = load_script("generate_cli_docs").render(app)
    message = "docs/cli.md is out of date: run `make docs`"
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page, message


def test_changelog_has_a_place_for_unreleased_changes() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_broken_links_are_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One heading, with `code`\n")
    page.write_text(
        "[a](other.md) [b](other.md#one-heading-with-code) [c](https://example.org/x)\n"
        "[d](gone.md) [e](other.md#gone) ![f](gone.png)\n```text\n[g](not-a-link.md)\n```\n"
    )
    assert [complaint.split(":")[0] for complaint in broken_links(page)] == [
        "gone.md",
        "other.md#gone",
        "gone.png",
    ]


def test_code_blocks_are_told_apart_by_language() -> None:
    text = "```python\nx = 1\n```\n\n```console\n$ ls\n```\n"
    assert code_blocks(text, "python") == ["x = 1\n"]


def test_the_reference_renders_arguments_options_and_groups() -> None:
    import typer

    app, group = typer.Typer(help="The program."), typer.Typer(help="A group.")
    app.add_typer(group, name="group")

    @app.command()
    def one(
        words: list[str] = typer.Argument(help="Words | more."),
        count: int = typer.Option(4, "--count", "-n", help="How many."),
        json: bool = typer.Option(False, "--json", help="For programs."),
    ) -> None:
        """Say words."""

    @group.command("two", hidden=True)
    def two() -> None:
        """Not shown."""

    page = load_script("generate_cli_docs").render(app, "prog")
    assert "The program." in page
    assert "## prog one\n\nSay words.\n\n```text\nprog one [OPTIONS] WORDS...\n```" in page
    assert "| `WORDS` | text, repeatable | required | Words \\| more. |" in page
    assert "| `--count`, `-n` | int | `4` | How many. |" in page
    assert "| `--json` | flag | off | For programs. |" in page
    assert "Not shown." not in page
