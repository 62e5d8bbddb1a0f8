"""One examination from end to end, and its report as plain data."""

from __future__ import annotations

import platform
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
import transformers

import draftproof
from draftproof.forensics import controls
from draftproof.forensics.compare import Comparison, Group, compare, grouped, survival
from draftproof.forensics.diagnose import Diagnosis, diagnose
from draftproof.forensics.forks import Fork, Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.policy import ExitCode, Policy
from draftproof.forensics.subjects.base import Answer, Inquiry, Subject, Task
from draftproof.forensics.verdicts import Finding

SCHEMA = "draftproof.forensics/1"
LENGTHS = (16, 64, 256, 1024)  # upper ends of the groups by prompt length
CONTEXT = 10  # tokens shown on both sides of a fork

Decode = Callable[[Sequence[int]], str]


class Controls(StrEnum):
    """Which controls run."""

    AUTO = "auto"  # those that the question needs
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Two subjects, examined.

    decode: token ids to text, for showing them; None shows ids alone
    """

    lab: Lab
    diagnosis: Diagnosis
    policy: Policy = field(default_factory=Policy)
    decode: Decode | None = None

    @cached_property
    def match(self) -> Comparison:
        """Rows that both sides answered."""
        return compare(*self._answered_ids)

    @property
    def _answered(self) -> list[tuple[Task, Answer, Answer]]:
        rows = zip(
            self.lab.inquiry.tasks,
            self.lab.expected.answers,
            self.lab.found.answers,
            strict=True,
        )
        return [row for row in rows if not row[1].error and not row[2].error]

    @property
    def _answered_ids(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        return [a.ids for _, a, _ in self._answered], [b.ids for _, _, b in self._answered]

    @property
    def broken(self) -> list[str]:
        """What of the policy is not fulfilled."""
        return self.policy.broken(self.diagnosis, self.match, self.lab.found.counters)

    @property
    def exit_code(self) -> ExitCode:
        """0, 1 or 3."""
        return self.policy.exit_code(self.diagnosis, self.broken)

    # -- as data -----------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The report; its format is named by `schema` and only grows within a version."""
        lab, inquiry = self.lab, self.lab.inquiry
        return {
            "schema": SCHEMA,
            "versions": versions(),
            "verdict": finding_as_dict(self.diagnosis.finding),
            "exit_code": int(self.exit_code),
            "policy": {name: getattr(self.policy, name) for name in Policy.__slots__}
            | {"broken": self.broken},
            "reference": {"name": lab.reference.name, "settings": lab.reference.settings()},
            "candidate": {"name": lab.candidate.name, "settings": lab.candidate.settings()},
            "speculation": self._speculation(),
            "inquiry": {
                "prompts": len(inquiry.tasks),
                "max_new_tokens": inquiry.max_new_tokens,
                "min_new_tokens": inquiry.min_new_tokens,
                "eos_token_id": inquiry.eos_token_id,
                "stop_strings": list(inquiry.stop_strings),
            },
            "match": self._match(),
            "noise": self._noise(),
            "controls": [outcome_as_dict(one) for one in lab.outcomes.values()],
            "rows": self._rows(),
        }

    def _speculation(self) -> dict[str, Any]:
        counters = self.lab.found.counters
        return {
            "on": counters.speculating,
            "drafted": counters.drafted,
            "accepted": counters.accepted,
            "acceptance": counters.acceptance,
            "rounds": counters.rounds,
            "source": counters.source,
        }

    def _match(self) -> dict[str, Any]:
        references, found = self._answered_ids
        tasks = [task for task, _, _ in self._answered]
        return {
            **match_as_dict(self.match),
            "unanswered": len(self.lab.inquiry.tasks) - self.match.rows,
            "survival": survival(references, found),
            "by_category": self._groups([t.category or "(none)" for t in tasks]),
            "by_prompt_length": self._groups([_length_group(len(t.prompt)) for t in tasks]),
            "by_batch": self._sweep("batch"),
            "by_k": self._sweep("k"),
        }

    def _groups(self, keys: Sequence[Hashable]) -> list[dict[str, Any]]:
        groups: list[Group] = grouped(keys, *self._answered_ids)
        return [{"name": group.name, **match_as_dict(group.comparison)} for group in groups]

    def _sweep(self, family: str) -> list[dict[str, Any]]:
        """Exact rows at other batch sizes or K, where those controls ran."""
        found = []
        for name, one in self.lab.outcomes.items():
            kind, _, number = name.partition("_")
            if kind == family and number.isdigit() and one.ran:
                exact = one.rows - len(one.forks) - one.errors
                found.append({"value": int(number), "exact": exact, "rows": one.rows})
        return sorted(found, key=lambda line: line["value"])

    def _noise(self) -> dict[str, Any]:
        noise = self.lab.noise(self.lab.dtype) if self.diagnosis.forks else None
        if noise is None:
            return {"band": None, "typical": None, "samples": 0, "sources": [], "doubted": ""}
        return {
            "band": noise.band,
            "typical": noise.typical,
            "samples": noise.samples,
            "sources": list(noise.sources),
            "doubted": noise.doubted,
            "dtype": self.lab.dtype,
            "grid": self.lab.grid,
        }

    def _rows(self) -> list[dict[str, Any]]:
        forks = {fork.row: fork for fork in self.diagnosis.forks}
        answers = zip(
            self.lab.inquiry.tasks,
            self.lab.expected.answers,
            self.lab.found.answers,
            strict=True,
        )
        return [self._row(task, a, b, forks.get(task.index)) for task, a, b in answers]

    def _row(self, task: Task, a: Answer, b: Answer, fork: Fork | None) -> dict[str, Any]:
        finding = self.diagnosis.rows.get(task.index)
        return {
            "index": task.index,
            "category": task.category,
            "prompt_length": len(task.prompt),
            "reference": list(a.ids),
            "candidate": list(b.ids),
            "error": a.error or b.error,
            "verdict": None if finding is None else finding_as_dict(finding),
            "fork": None if fork is None else self._fork(fork, a, b),
        }

    def _fork(self, fork: Fork, a: Answer, b: Answer) -> dict[str, Any]:
        at = fork.divergence.position
        return {
            "position": at,
            "expected": fork.divergence.expected,
            "found": fork.divergence.found,
            "context": fork.context,
            "gap": fork.gap,
            "gap_is_lower_bound": fork.bounded,
            "steps": fork.steps,
            "near": fork.near,
            "overshoot": fork.overshoot,
            "block": block_of(b, at),
            "before": self._shown(a.ids[max(0, at - CONTEXT) : at]),
            "reference_after": self._shown(a.ids[at : at + CONTEXT]),
            "candidate_after": self._shown(b.ids[at : at + CONTEXT]),
        }

    def _shown(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        return [{"id": i, "text": None if self.decode is None else self.decode([i])} for i in ids]


def block_of(answer: Answer, position: int) -> dict[str, int] | None:
    """Which round emitted a token, how far into its block, and what was accepted of it."""
    seen = 0
    for number, one in enumerate(answer.rounds):
        if position < seen + len(one.emitted):
            return {
                "round": number,
                "offset": position - seen,
                "drafted": len(one.drafts),
                "accepted": one.accepted,
            }
        seen += len(one.emitted)
    return None


def examine(
    reference: Subject,
    candidate: Subject,
    inquiry: Inquiry,
    *,
    which: Controls = Controls.AUTO,
    policy: Policy | None = None,
    decode: Decode | None = None,
) -> Examination:
    """Compare two subjects and say why they differ."""
    rules = policy or Policy()
    lab = Lab(
        reference=reference,
        candidate=candidate,
        inquiry=inquiry,
        max_gap=rules.max_gap,
        controls=which is not Controls.NONE,
    )
    if which is Controls.ALL and inquiry.temperature is None:
        for name in controls.names(lab):
            controls.outcome(lab, name)
    diagnosis = diagnose(lab)
    return Examination(lab=lab, diagnosis=diagnosis, policy=rules, decode=decode)


def versions() -> dict[str, str]:
    """Of what took part."""
    return {
        "draftproof": draftproof.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def finding_as_dict(finding: Finding) -> dict[str, Any]:
    """For JSON."""
    return {
        "cause": finding.cause.value,
        "kind": None if finding.kind is None else finding.kind.value,
        "rule": finding.rule,
        "reasons": list(finding.reasons),
        "missing": list(finding.missing),
    }


def match_as_dict(match: Comparison) -> dict[str, Any]:
    """For JSON."""
    return {
        "rows": match.rows,
        "exact": match.exact,
        "interval": list(match.interval),
        "partial": match.partial,
    }


def outcome_as_dict(one: Outcome) -> dict[str, Any]:
    """For JSON."""
    return {
        "name": one.name,
        "purpose": controls.purpose(one.name),
        "ran": one.ran,
        "note": one.note,
        "rows": one.rows,
        "differing": len(one.forks),
        "beyond_noise": len(one.hard) + len(one.ends),
        "errors": one.errors,
    }


def _length_group(length: int) -> str:
    end = next((end for end in LENGTHS if length <= end), None)
    return f"over {LENGTHS[-1]}" if end is None else f"up to {end}"
