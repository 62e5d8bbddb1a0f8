"""A folder that holds everything of an examination: to be sent, kept, and replayed.

bundle.json       the report, the SPECs, the prompts
reference.jsonl   one answer per row: ids, transcript, the likeliest tokens around the fork
candidate.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.engine.events import RowRound
from draftproof.errors import InputError
from draftproof.forensics.examine import SCHEMA, Examination
from draftproof.forensics.subjects.base import Answer, Inquiry, Run, Task, Top
from draftproof.types import FinishReason

AROUND = 2  # scores kept on both sides of a fork


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a folder holds."""

    report: dict[str, Any]
    inquiry: Inquiry
    expected: Run
    found: Run

    @property
    def candidate(self) -> str:
        """SPEC of the candidate."""
        return str(self.report["candidate"]["name"])


def write(examination: Examination, folder: Path) -> None:
    """Write the folder; files of an earlier bundle in it are replaced."""
    lab = examination.lab
    forks = {fork.row: fork.divergence.position for fork in examination.diagnosis.forks}
    write_rows(examination.as_dict(), lab.inquiry, lab.expected, lab.found, folder, forks)


def write_rows(
    report: dict[str, Any],
    inquiry: Inquiry,
    expected: Run,
    found: Run,
    folder: Path,
    forks: Mapping[int, int] | None = None,
) -> None:
    """Write the folder from what both sides answered.

    forks: position of the first difference by row, around which scores are kept
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {"report": {"schema": SCHEMA, **report}, "inquiry": asdict(inquiry)}
    (folder / "bundle.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name, run in (("reference", expected), ("candidate", found)):
        rows = zip(inquiry.tasks, run.answers, strict=True)
        lines = [
            json.dumps(_answer(answer, (forks or {}).get(task.index))) for task, answer in rows
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _answer(answer: Answer, fork: int | None) -> dict[str, Any]:
    tops = {}
    if fork is not None:
        window = range(max(0, fork - AROUND), min(len(answer.tops), fork + AROUND + 1))
        tops = {place: asdict(answer.tops[place]) for place in window}
    return {
        "ids": list(answer.ids),
        "error": answer.error,
        "finish_reason": answer.finish_reason,
        "rounds": [asdict(one) for one in answer.rounds],
        "tops": tops,
    }


def read(folder: Path) -> Bundle:
    """Raises InputError when the folder is no bundle, or one of another version."""
    try:
        content = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
        report, inquiry = content["report"], _inquiry(content["inquiry"])
        runs = [_run(folder / f"{name}.jsonl") for name in ("reference", "candidate")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is no bundle: {error}") from error
    if report.get("schema") != SCHEMA:
        raise InputError(f"{folder} has schema {report.get('schema')}, this is {SCHEMA}")
    return Bundle(report=report, inquiry=inquiry, expected=runs[0], found=runs[1])


def _inquiry(raw: dict[str, Any]) -> Inquiry:
    tasks = tuple(Task(**{**task, "prompt": tuple(task["prompt"])}) for task in raw["tasks"])
    ends = raw["eos_token_id"]
    return Inquiry(
        tasks=tasks,
        max_new_tokens=raw["max_new_tokens"],
        min_new_tokens=raw["min_new_tokens"],
        eos_token_id=None if ends is None else tuple(ends),
        stop_strings=tuple(raw["stop_strings"]),
    )


def _run(path: Path) -> Run:
    lines = path.read_text(encoding="utf-8").splitlines()
    return Run(answers=tuple(_read_answer(json.loads(line)) for line in lines))


def _read_answer(raw: dict[str, Any]) -> Answer:
    return Answer(
        ids=tuple(raw["ids"]),
        error=raw["error"],
        finish_reason=raw["finish_reason"],
        rounds=tuple(_rounds(raw["rounds"])),
    )


def _rounds(raw: Iterable[dict[str, Any]]) -> Iterable[RowRound]:
    for one in raw:
        reason = one["finish_reason"]
        lists = {key: tuple(one[key]) for key in ("drafts", "target_ids", "emitted")}
        yield RowRound(
            **{**one, **lists, "finish_reason": None if reason is None else FinishReason(reason)}
        )


def top_at(folder: Path, side: str, row: int, place: int) -> Top | None:
    """The likeliest tokens recorded at a place, near a fork."""
    line = (folder / f"{side}.jsonl").read_text(encoding="utf-8").splitlines()[row]
    raw = json.loads(line)["tops"].get(str(place))
    if raw is None:
        return None
    return Top(ids=tuple(raw["ids"]), values=tuple(raw["values"]), logits=raw["logits"])
