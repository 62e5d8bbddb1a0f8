"""What a run must fulfil to pass: the thresholds of a CI gate, from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path

from draftproof.errors import InputError
from draftproof.forensics.compare import Comparison
from draftproof.forensics.diagnose import Diagnosis
from draftproof.forensics.noise import NOBODY_DEFENDS
from draftproof.forensics.subjects.base import Counters
from draftproof.forensics.verdicts import Cause


class ExitCode(IntEnum):
    """Of `draftproof check`; 2 is a usage error."""

    PASSED = 0
    FAILED = 1
    UNDECIDED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Thresholds; the defaults pass whatever is exact or numeric.

    numeric:             whether near ties may fall the other way
    harness:             whether rows may end by other rules
    min_exact:           least share of exact rows, 0 to 1
    min_partial:         least mean partial match, 0 to 1
    max_gap:             largest gap at a fork that may be called numeric, in logits or nats
    require_speculation: whether an unknown answer to "is speculation on" breaks the policy
    min_acceptance:      least acceptance rate, 0 to 1
    """

    numeric: bool = True
    harness: bool = False
    min_exact: float = 0.0
    min_partial: float = 0.0
    max_gap: float = NOBODY_DEFENDS
    require_speculation: bool = False
    min_acceptance: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Policy:
        """From `[policy]` of a TOML file. Raises InputError, naming the key."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8")).get("policy", {})
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path}: {error}") from error
        kinds = {field.name: type(field.default) for field in fields(cls)}
        for key, value in table.items():
            if key not in kinds:
                raise InputError(f"{path}: {key!r} is not one of {', '.join(kinds)}")
            if isinstance(value, bool) != (kinds[key] is bool) or not isinstance(
                value, (bool, int, float)
            ):
                raise InputError(f"{path}: {key} must be a {kinds[key].__name__}, got {value!r}")
        return cls(**table)

    def broken(self, diagnosis: Diagnosis, match: Comparison, counters: Counters) -> list[str]:
        """What the run does not fulfil, in words."""
        cause, rate = diagnosis.finding.cause, match.exact / max(1, match.rows)
        told = []
        if cause is Cause.NUMERIC and not self.numeric:
            told.append("numeric differences are not allowed")
        if cause is Cause.HARNESS and not self.harness:
            told.append("the two sides were not asked the same or are not set up alike")
        if rate < self.min_exact:
            told.append(f"exact match {rate:.3f} is below {self.min_exact}")
        if match.partial < self.min_partial:
            told.append(f"partial match {match.partial:.3f} is below {self.min_partial}")
        if self.require_speculation and counters.speculating is None:
            told.append("nobody says whether speculation is on")
        if self.min_acceptance and (counters.acceptance or 0.0) < self.min_acceptance:
            told.append(f"acceptance {counters.acceptance or 0.0:.3f} < {self.min_acceptance}")
        return told

    def exit_code(self, diagnosis: Diagnosis, broken: list[str]) -> ExitCode:
        """0 exact or numeric within the policy, 1 a bug or a broken policy, 3 undecided."""
        cause = diagnosis.finding.cause
        if cause is Cause.BUG:
            return ExitCode.FAILED
        if cause is Cause.UNDECIDED:
            return ExitCode.UNDECIDED
        return ExitCode.FAILED if broken else ExitCode.PASSED
