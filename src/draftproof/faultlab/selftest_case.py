"""One case of the proof: an examination whose right verdict is known."""

from __future__ import annotations

import time
from dataclasses import dataclass

from draftproof.forensics.diagnose import diagnose
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import Inquiry, Subject
from draftproof.forensics.verdicts import Cause, Finding, Kind

FALSE_ALARMS = (Cause.BUG, Cause.HARNESS, Cause.UNDECIDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One fault on one scenario, or one correct configuration.

    expected: the kind that must be found; None: nothing must be found
    """

    name: str
    scenario: str
    expected: Kind | None
    cause: Cause
    found: Kind | None
    rule: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether it was recognised for what it is."""
        if self.expected is None:
            return self.cause not in FALSE_ALARMS
        return self.cause is Cause.BUG and self.found is self.expected


def finding_of(reference: Subject, candidate: Subject, inquiry: Inquiry) -> tuple[Finding, bool]:
    """The verdict on a run, and whether any row differs."""
    diagnosis = diagnose(Lab(reference=reference, candidate=candidate, inquiry=inquiry))
    return diagnosis.finding, bool(diagnosis.forks)


def examined(
    *,
    name: str,
    scenario: str,
    expected: Kind | None,
    reference: Subject,
    candidate: Subject,
    inquiry: Inquiry,
) -> Case:
    """Examine, and keep what it was taken for."""
    started = time.perf_counter()
    found, _ = finding_of(reference, candidate, inquiry)
    return Case(
        name=name,
        scenario=scenario,
        expected=expected,
        cause=found.cause,
        found=found.kind,
        rule=found.rule,
        seconds=round(time.perf_counter() - started, 2),
    )
