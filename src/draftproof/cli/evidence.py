"""What audits found, kept in a folder that `draftproof replay` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.types import Result


def keep_evidence(results: Sequence[Result], settings: dict[str, Any], folder: Path) -> None:
    """Write the prompts, both outputs and the transcripts of results whose audit failed.

    Raises OSError where the folder cannot be written.
    """
    from draftproof.forensics.bundle import write_rows
    from draftproof.forensics.subjects.base import Answer, Inquiry, Run, Task

    tasks, expected, found = [], [], []
    for index, result in enumerate(results):
        audit = result.audited
        assert audit is not None
        tasks.append(Task(index=index, prompt=audit.prompt, text=result.text))
        expected.append(Answer(ids=audit.expected))
        found.append(Answer(ids=tuple(result.token_ids), rounds=audit.rounds))
    rows = [
        {"index": i, "fork": {"position": result.audited and result.audited.position}}
        for i, result in enumerate(results)
    ]
    report = {
        "candidate": {"name": "audited run"},
        "reference": {"name": "plain, alone"},
        "settings": settings,
        "rows": rows,
        "reasons": [str(result.audited and result.audited.reason) for result in results],
    }
    longest = max(len(result.token_ids) for result in results)
    inquiry = Inquiry(tasks=tuple(tasks), max_new_tokens=max(1, longest))
    write_rows(report, inquiry, Run(answers=tuple(expected)), Run(answers=tuple(found)), folder)
