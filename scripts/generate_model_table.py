"""Write docs/models.md: what becomes of every causal type of the installed transformers.

    python scripts/generate_model_table.py docs/models.md

Makes a tiny random model of each type, decodes with it, and compares: some minutes on one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# Nothing is recalled: the table is what this version finds.
os.environ["DRAFTPROOF_CACHE"] = tempfile.mkdtemp(prefix="draftproof-models-")

HEAD = """# Models

Any causal language model of transformers, your own classes included, can be given to draftproof.
Whether it is decoded does not depend on a list of names: when a model is bound, its own `generate`
and a batch of ragged rows are [compared](invariants.md#the-models-own-forward-is-the-judge), module
by module, and a model that has a mask, a scale or positions of its own is refused with the first
module that differs.

This table is made by `python scripts/generate_model_table.py docs/models.md` from the types that
`AutoModelForCausalLM` knows in transformers {version}. Of each a tiny random model in float32
decodes a batch of three ragged rows, K = 3, with an n-gram drafter and with a scripted one whose
drafts are rejected, partly accepted and all accepted; the ids must be those of its own `generate`
for each row alone. *fast* and *exact* are the [tiers](numerics.md). A refusal comes before any text
is made, and says why.

{counts}
"""
KINDS = {
    "right": "Right",
    "refused": "Refused",
    "differs": "Differs: a bug",
    "fails": "Fails: a bug",
    "not made": "Not tried",
}


def page(outcomes: Sequence[Any], version: str) -> str:
    """The whole page, from `draftproof.testing.sweep.Outcome`s."""
    by_kind = {kind: [o for o in outcomes if o.kind == kind] for kind in KINDS}
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in by_kind.items() if found)
    parts = [HEAD.format(version=version, counts=f"{len(outcomes)} types: {counts}.")]
    for kind, found in by_kind.items():
        if found:
            parts.append(f"\n## {KINDS[kind]}\n\n| type | class | |\n| --- | --- | --- |\n")
            parts += map(_line, found)
    return "".join(parts)


def _line(outcome: Any) -> str:
    """One row: the reason without the class, and without what all refusals of a kind repeat."""
    reason = outcome.detail.removeprefix(f"{outcome.model_class}: ")
    reason = reason.split(": what happens there depends")[0]
    for sign in "|<>":
        reason = reason.replace(sign, "\\" + sign)
    return f"| `{outcome.model_type}` | `{outcome.model_class}` | {reason[:220]} |\n"


def main(path: str) -> None:
    """Examine every type, and write the page."""
    warnings.simplefilter("ignore")
    import transformers

    from draftproof.testing.every_type import causal_types
    from draftproof.testing.sweep import examine

    outcomes = []
    for name in causal_types():
        outcome = examine(name)
        print(f"{outcome.kind:9} {name}: {outcome.detail}", flush=True)
        outcomes.append(outcome)
    Path(path).write_text(page(outcomes, transformers.__version__), encoding="utf-8")
    if not all(outcome.acceptable for outcome in outcomes):
        sys.exit("a type differs or fails")


if __name__ == "__main__":
    main(*sys.argv[1:])
