"""From two runs to a verdict on every row that differs, and on the run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from draftproof.forensics import numeric, other_setup
from draftproof.forensics.controls import hard_forks, outcome, rerun
from draftproof.forensics.distribution import judge as judge_draws
from draftproof.forensics.drafts import DraftAudit, audit, draft_model
from draftproof.forensics.facts import Facts
from draftproof.forensics.forks import Fork
from draftproof.forensics.kinds import judge
from draftproof.forensics.lab import Lab
from draftproof.forensics.probes import gather
from draftproof.forensics.replays import Replays, replays
from draftproof.forensics.stopping import judged
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import GRAVITY, Cause, Finding, Kind

NOISE_CONTROLS = ("reference_batched", "reference_rescored")


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The verdict on a run, and on every row that differs or failed (by task index).

    facts: what was observed, where rows differ by more than rounding
    """

    finding: Finding
    rows: dict[int, Finding]
    forks: tuple[Fork, ...]
    facts: Facts | None = None


def diagnose(lab: Lab) -> Diagnosis:
    """Compare, gather what evidence is needed, decide."""
    if lab.inquiry.temperature is not None:
        return _diagnose_draws(lab)
    failures = _failures(lab)
    forks = lab.forks(lab.expected, lab.found, lab.dtype)
    explained, facts = _explained(lab, forks)
    rows = failures | explained
    if forks and lab.controls:
        for name in NOISE_CONTROLS:  # their gaps are the band: the report shows what they are
            outcome(lab, name)
    quiet = all(one.cause in (Cause.EXACT, Cause.NUMERIC) for one in rows.values())
    finding = (_hidden(lab) if quiet else None) or _overall(lab, rows, forks)
    if finding.cause is Cause.EXACT and "again" in lab.outcomes:
        finding = _distrust(lab) or finding  # agreement with a side that contradicts itself is luck
    finding = replace(finding, reasons=(*finding.reasons, *lab.notes))
    return Diagnosis(finding=finding, rows=rows, forks=forks, facts=facts)


def _diagnose_draws(lab: Lab) -> Diagnosis:
    """Sampled rows are judged by their distribution; no row can be right or wrong alone."""
    model = lab.model(None)
    if model is None:
        need = ("a local target, whose exact distribution can be computed",)
        finding = Finding(cause=Cause.UNDECIDED, rule="sampled", missing=need)
        return Diagnosis(finding=finding, rows={}, forks=())
    failures = {
        task.index: Finding(cause=Cause.UNDECIDED, rule="no answer", reasons=(answer.error,))
        for task, answer in zip(lab.inquiry.tasks, lab.found.answers, strict=True)
        if answer.error is not None
    }
    finding = (
        _overall(lab, failures, ()) if failures else judge_draws(lab.found, lab.inquiry, model)
    )
    return Diagnosis(finding=finding, rows=failures, forks=())


def _failures(lab: Lab) -> dict[int, Finding]:
    """Rows without an answer say nothing, whatever the others say."""
    found = {}
    answers = zip(lab.inquiry.tasks, lab.expected.answers, lab.found.answers, strict=True)
    for task, a, b in answers:
        for side, answer in (("reference", a), ("candidate", b)):
            if answer.error is not None:
                found[task.index] = Finding(
                    cause=Cause.UNDECIDED,
                    rule="no answer",
                    reasons=(f"{side}: {answer.error}",),
                    missing=(f"the {side}'s answer to row {task.index}",),
                )
    return found


# -- rows that differ ------------------------------------------------------------------------------


def _explained(lab: Lab, forks: tuple[Fork, ...]) -> tuple[dict[int, Finding], Facts | None]:
    """NUMERIC where it is earned; what the table of kinds says for all the others.

    Rows that merely end elsewhere are judged on their own: they do not speak for the others.
    """
    doubt = _distrust(lab) if forks else None
    if doubt is not None:
        return {fork.row: _at(doubt, fork, lab) for fork in forks}, None
    found: dict[int, Finding] = {}
    logic, ends = [], [fork for fork in forks if fork.end]
    for fork in forks:
        near = None if fork.end else numeric.finding(lab, fork)
        if near is not None:
            found[fork.row] = near
        elif not fork.end:
            logic.append(fork)
    facts = gather(lab) if logic else None
    if facts is not None:
        finding = judge(facts, certain=_certain(lab))
        found |= {fork.row: _at(finding, fork, lab) for fork in logic}
    return found | (judged(lab, ends) if ends else {}), facts


def _at(finding: Finding, fork: Fork, lab: Lab) -> Finding:
    return replace(finding, reasons=(numeric.gap_in_words(lab, fork), *finding.reasons))


def _certain(lab: Lab) -> bool:
    """Whether what differs is beyond anything that rounding makes."""
    hard = [fork for fork in hard_forks(lab) if fork.gap is not None]
    clean = rerun(lab)
    if clean is not None and any(fork.gap is not None for fork in clean.hard):
        return True
    beyond, seen = numeric.scores_beyond(lab) if lab.noise(lab.dtype).samples else (0, 0)
    return max((f.gap or 0.0 for f in hard), default=0.0) > lab.max_gap or beyond > max(
        2.0, numeric.RARE * seen
    )


def _distrust(lab: Lab) -> Finding | None:
    """Whether a side, asked a second time, says something else by more than rounding."""
    for side, name in (("reference", "again"), ("candidate", "again_candidate")):
        again = outcome(lab, name)
        apart = len(again.hard) + len(again.ends)
        if not again.errors and not apart:
            continue
        told = f"failed on {again.errors}" if again.errors else f"differs from itself on {apart}"
        drawn = _drawn(lab) if side == "candidate" and apart else None
        return drawn or Finding(
            cause=Cause.UNDECIDED,
            rule=f"the {side} does not repeat itself",
            reasons=(f"asked a second time, the {side} {told} of {again.rows} rows",),
            missing=(f"a {side} that repeats itself: no other load, a fixed order of requests",),
        )
    return None


def _drawn(lab: Lab) -> Finding | None:
    """A candidate that samples where it was asked for the best token does not repeat itself."""
    if lab.model(lab.clean) is None:
        return None
    told = other_setup.sampled(lab, lab.expected, lab.found)
    if told is None or not told.holds:
        return None
    reasons = ("asked a second time, the candidate says something else", told.words)
    return Finding(
        cause=Cause.HARNESS, kind=Kind.SAMPLED, rule="tokens are drawn, not chosen", reasons=reasons
    )


# -- faults that leave the output right ------------------------------------------------------------


def _hidden(lab: Lab) -> Finding | None:
    """Nothing is drafted, or the drafts are not the draft's; asked where all rows are right."""
    if _not_speculating(lab):
        told = f"nothing was drafted ({lab.found.counters.source}): equal outputs say nothing"
        return Finding(
            cause=Cause.BUG,
            kind=Kind.NOT_SPECULATING,
            rule="speculation not running",
            reasons=(told,),
        )
    if draft_model(lab, None) is None:
        return _drifting(replays(lab))
    checked = audit(lab, lab.found, None)
    if checked is not None and checked.drifts and lab.clean and lab.dtype != lab.clean:
        again = outcome(lab, "own").run
        checked = audit(lab, again, lab.clean) if again is not None else checked
    return _drifting(checked)


def _drifting(checked: DraftAudit | Replays | None) -> Finding | None:
    if checked is None or not checked.drifts:
        return None
    return Finding(
        cause=Cause.BUG,
        kind=Kind.DRAFT_CACHE,
        rule="drafts are not the draft's",
        reasons=("the output is right", *checked.reasons()),
    )


def _not_speculating(lab: Lab) -> bool:
    """Nothing drafted although K > 0; known drafts, where they can be handed in, settle it."""
    wanted = lab.candidate.k
    if wanted == 0 or lab.found.counters.speculating is not False:
        return False
    if not any(len(answer.ids) > 2 for answer in lab.found.answers):
        return False  # nothing to speculate on
    if wanted and Ability.SCRIPT in lab.candidate.abilities:
        run = outcome(lab, f"right_{wanted}").run
        return run is not None and run.counters.speculating is False
    return True


# -- the run ---------------------------------------------------------------------------------------


def _overall(lab: Lab, rows: dict[int, Finding], forks: tuple[Fork, ...]) -> Finding:
    """The gravest of the rows' findings; EXACT where there is none."""
    if not rows:
        speculating = lab.found.counters.speculating
        known = "unknown" if speculating is None else "yes" if speculating else "no (K = 0)"
        return Finding(
            cause=Cause.EXACT,
            rule="nothing differs",
            reasons=(f"all {len(lab.inquiry.tasks)} rows are equal", f"speculating: {known}"),
            missing=() if speculating is not None else ("the candidate's speculation counters",),
        )
    worst = min(rows.values(), key=_gravity)
    if all(finding.cause is Cause.NUMERIC for finding in rows.values()):
        return numeric.whole_run(lab, worst, [fork for fork in forks if fork.row in rows])
    told = Counter(str(finding) for finding in sorted(rows.values(), key=_gravity))
    counts = ", ".join(f"{count} {name}" for name, count in told.items())
    return replace(worst, reasons=(f"of {len(lab.inquiry.tasks)} rows {counts}", *worst.reasons))


def _gravity(finding: Finding) -> tuple[int, bool]:
    """Of two bugs, the one in the tokens goes before the one at the end of a row."""
    return GRAVITY.index(finding.cause), finding.kind is Kind.ENDING
