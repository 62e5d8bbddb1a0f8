"""Whether tests and soak notice small faults: each mutant of the source must be killed.

    python scripts/mutants.py [--only TEXT] [--limit 90]

A mutant is one replacement in one file (tests/mutations/mutants.json). Each is applied to a copy
of `src` in a temporary folder, never to the checkout, and the checks below run against it until one
fails: that kills it. Prints a line per mutant and, last, the score as JSON; the exit code is 1
when a mutant survives that is not explained as equivalent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutations" / "mutants.json"
SOAK = ("-m", "draftproof.testing.soak", "--minutes", "1")
# cheap and broad first; what only certain tests can see is named by the mutant's own `tests`
CHECKS: tuple[tuple[str, ...], ...] = (
    (*SOAK, "--requests", "200", "--seed", "0"),
    ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/unit/test_scheduler.py"),
    (*SOAK, "--requests", "300", "--seed", "1000"),
)


def main() -> int:
    """Try every mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a file name or of what it breaks")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds per check")
    given = parser.parse_args()
    mutants = json.loads(MUTANTS.read_text(encoding="utf-8"))
    mutants = [m for m in mutants if given.only in m["file"] or given.only in m["breaks"]]
    begin, killed, survivors = time.perf_counter(), 0, []
    for mutant in mutants:
        how = killer(mutant, given.limit)
        killed += how is not None
        if how is None and "equivalent" not in mutant:
            survivors.append(mutant["breaks"])
        explained = f"survives: {mutant['equivalent']}" if "equivalent" in mutant else "SURVIVES"
        print(f"{mutant['file']}: {mutant['breaks']}: {how or explained}", flush=True)
    score = {
        "mutants": len(mutants),
        "killed": killed,
        "explained": len(mutants) - killed - len(survivors),
        "survivors": survivors,
        "seconds": round(time.perf_counter() - begin),
    }
    print(json.dumps(score))
    return 1 if survivors else 0


def killer(mutant: dict[str, Any], limit: float) -> str | None:
    """The check that fails with a mutant; None: all pass."""
    with tempfile.TemporaryDirectory(prefix="draftproof-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        file = source / "draftproof" / mutant["file"]
        text = file.read_text(encoding="utf-8")
        if text.count(mutant["old"]) != 1:
            raise SystemExit(f"{mutant['file']}: {mutant['old']!r} is not there exactly once")
        file.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
        own = [("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.get("tests", ()))]
        for check in (*(own if "tests" in mutant else ()), *CHECKS):
            begin = time.perf_counter()
            if not passes(check, source, folder, limit):
                return f"killed by {check[1]} {check[-1]} in {time.perf_counter() - begin:.0f} s"
    return None


def passes(check: tuple[str, ...], source: Path, cache: str, limit: float) -> bool:
    """Whether a check passes; one that runs out of time has not."""
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "DRAFTPROOF_CACHE": cache,
        "OMP_NUM_THREADS": "1",
    }
    try:
        run = subprocess.run(
            [sys.executable, *check],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
