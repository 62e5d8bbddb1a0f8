"""Write the measured tables of a page from results files.

    python scripts/fill_tables.py docs/paper.md

A page marks each table and where its figures come from, relative to the repository:

    <!-- table: match from benchmarks/results/NAME/results.jsonl -->
    whatever stands here is replaced
    <!-- end of table -->

tests/unit/test_fill_tables.py fails when the page and the results differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from draftproof.bench.journal import Journal
from draftproof.bench.report import facts, table_lines
from draftproof.bench.results import Results
from draftproof.bench.tables import tables

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- table: (\w+) from (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
MISSING = "*Not measured yet.*"
SHOWN = ("target", "draft", "K", "torch", "transformers", "machine", "threads", "capability")


def fill(page: str, root: Path = ROOT) -> str:
    """The page with every marked table made anew."""
    return TABLE.sub(lambda match: match[1] + _table(match[2], root / match[3]) + match[4], page)


def _table(name: str, path: Path) -> str:
    records = Journal(path).records()
    made = {table.name: table for table in tables(Results(records))}
    if name not in made:
        return f"\n{MISSING}\n\n"
    about = facts(records)
    words = ", ".join(f"{key} {about[key]}" for key in SHOWN)
    lines = [*table_lines(made[name]), "", f"({words})"]
    return "\n" + "\n".join(lines) + "\n\n"


def main() -> None:
    """Rewrite the pages given."""
    for page in map(Path, sys.argv[1:]):
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
