"""From evidence to causes: of every first divergence, and of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof.forensics.controls import outcome, rerun
from draftproof.forensics.distribution import judge
from draftproof.forensics.drafts import DraftAudit, audit, draft_model
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.replays import Replays, replays
from draftproof.forensics.rules import RULES, Rule
from draftproof.forensics.rules.ends import judged
from draftproof.forensics.rules.plain import ties
from draftproof.forensics.rules.trust import TRUST
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import GRAVITY, Cause, Finding, Kind

NOISE_CONTROLS = ("reference_batched", "reference_rescored")


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The verdict on a run, and on every row that differs or failed (by task index)."""

    finding: Finding
    rows: dict[int, Finding]
    forks: tuple[Fork, ...]


def diagnose(lab: Lab) -> Diagnosis:
    """Compare, gather what evidence is needed, decide."""
    if lab.inquiry.temperature is not None:
        return _diagnose_draws(lab)
    failures = _failures(lab)
    forks = lab.forks(lab.expected, lab.found, lab.dtype)
    rows = failures | _explained(lab, forks)
    if forks and lab.controls:
        for name in NOISE_CONTROLS:  # their gaps are the band: the report shows what they are
            outcome(lab, name)
    quiet = not any(finding.cause is Cause.BUG for finding in rows.values())
    hidden = _hidden(lab, rows) if quiet and len(failures) < len(lab.inquiry.tasks) else None
    finding = _unless_fickle(lab, hidden or _overall(lab, rows, forks))
    finding = replace(finding, reasons=(*finding.reasons, *lab.notes))
    return Diagnosis(finding=finding, rows=rows, forks=forks)


def _unless_fickle(lab: Lab, finding: Finding) -> Finding:
    """Agreement with a side that contradicts itself is luck; said where A/A controls have run."""
    if finding.cause not in (Cause.EXACT, Cause.NUMERIC):
        return finding
    for name, rule in zip(("again", "again_candidate"), TRUST, strict=False):
        reasons = rule.holds(lab) if name in lab.outcomes else None
        if reasons is not None:
            return Finding(cause=rule.cause, rule=rule.name, reasons=reasons, missing=rule.missing)
    return finding


def _diagnose_draws(lab: Lab) -> Diagnosis:
    """Sampled rows are judged by their distribution; no row can be right or wrong alone."""
    model = lab.model(None)
    if model is None:
        finding = Finding(
            cause=Cause.UNDECIDED,
            rule="sampled",
            missing=("a local target, whose exact distribution can be computed",),
        )
        return Diagnosis(finding=finding, rows={}, forks=())
    failures = {
        task.index: Finding(cause=Cause.UNDECIDED, rule="no answer", reasons=(answer.error,))
        for task, answer in zip(lab.inquiry.tasks, lab.found.answers, strict=True)
        if answer.error is not None
    }
    finding = _overall(lab, failures, ()) if failures else judge(lab.found, lab.inquiry, model)
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


def _explained(lab: Lab, forks: tuple[Fork, ...]) -> dict[int, Finding]:
    """NUMERIC where rounding explains a fork; what the table says for all the others.

    Rows that merely end elsewhere are judged on their own: they do not speak for the others.
    """
    ends = [fork for fork in forks if fork.end]
    logic = [fork for fork in forks if not fork.end and not _is_numeric(lab, fork)]
    numeric = [fork for fork in forks if not fork.end and fork not in logic]
    found = {fork.row: _numeric(lab, fork) for fork in numeric}
    doubt = _first(TRUST, lab) if logic or ends else None
    if logic:
        finding = doubt or _by_table(lab)
        found |= {fork.row: _at(finding, fork, lab) for fork in logic}
    if ends:
        found |= {fork.row: doubt for fork in ends} if doubt else judged(lab, ends)
    return found


def _is_numeric(lab: Lab, fork: Fork) -> bool:
    """A near tie that float32, where it can be had, decides as the reference does."""
    if ties(lab):
        return False
    clean = rerun(lab)
    if clean is None:
        return fork.near is True and outcome(lab, "again").clean
    if not clean.clean:
        return False
    # gone in float32: what is left is arithmetic, if the gap is one that arithmetic can make
    return fork.near is True or (fork.gap is not None and fork.gap <= lab.max_gap)


def _numeric(lab: Lab, fork: Fork) -> Finding:
    noise = lab.noise(lab.dtype)
    reasons = [
        _gap_in_words(fork, lab),
        f"measured noise of such gaps: {noise.band:.3g} ({noise.samples} places; "
        f"{' and '.join(noise.sources) or 'no control could run'})",
    ]
    if noise.doubted:
        reasons.append(f"not all of it counts as noise: {noise.doubted}")
    missing: list[str] = []
    if rerun(lab) is None:
        missing.append("a float32 rerun of both sides")
    else:
        reasons.append("gone in float32")
    return Finding(
        cause=Cause.NUMERIC, rule="near tie", reasons=tuple(reasons), missing=tuple(missing)
    )


def _steps_in_words(lab: Lab) -> str:
    """A server names no dtype: then steps are those of the grid that its scores lie on."""
    return "steps of the dtype" if lab.dtype else f"steps of {lab.grid:.3g}, its scores' grid"


def _counted(steps: float) -> str:
    return f"{steps:.3g}" if steps < 100 else f"{steps:,.0f}"


def _gap_in_words(fork: Fork, lab: Lab) -> str:
    if fork.gap is None:
        return "the gap at the fork is not shown"
    at_least = "at least " if fork.bounded else ""
    steps = "" if fork.steps is None else f" = {_counted(fork.steps)} {_steps_in_words(lab)}"
    return f"gap at the fork {at_least}{fork.gap:.3g}{steps}, at the reference's own shape"


def _at(finding: Finding, fork: Fork, lab: Lab) -> Finding:
    return replace(finding, reasons=(_gap_in_words(fork, lab), *finding.reasons))


def _by_table(lab: Lab) -> Finding:
    found = _first(RULES, lab)
    assert found is not None, "the last rule always holds"
    return found


def _first(rules: Sequence[Rule], lab: Lab) -> Finding | None:
    """What the first rule that holds says."""
    for rule in rules:
        reasons = rule.holds(lab)
        if reasons is not None:
            return _speak(rule, reasons)
    return None


def _speak(rule: Rule, reasons: tuple[str, ...]) -> Finding:
    return Finding(
        cause=rule.cause, kind=rule.kind, rule=rule.name, reasons=reasons, missing=rule.missing
    )


def _hidden(lab: Lab, rows: dict[int, Finding]) -> Finding | None:
    """Faults that leave the output right: nothing is drafted, or the drafts are not the draft's."""
    if _not_speculating(lab):
        return Finding(
            cause=Cause.BUG,
            kind=Kind.NOT_SPECULATING,
            rule="speculation not running",
            reasons=(
                f"nothing was drafted ({lab.found.counters.source}): equal outputs say nothing",
            ),
        )
    if any(finding.cause is Cause.UNDECIDED for finding in rows.values()):
        return None  # nobody knows whether the output is right
    if draft_model(lab, None) is None:
        return _drifting(replays(lab))
    checked = audit(lab, lab.found, None)
    if checked is not None and checked.drifts and lab.clean and _casts(lab):
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


def _casts(lab: Lab) -> bool:
    return lab.dtype != lab.clean


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
        return _numeric_as_a_whole(lab, worst, [fork for fork in forks if fork.row in rows])
    told = Counter(str(finding) for finding in sorted(rows.values(), key=_gravity))
    head = f"of {len(lab.inquiry.tasks)} rows " + ", ".join(
        f"{count} {name}" for name, count in told.items()
    )
    return replace(worst, reasons=(head, *worst.reasons))


def _gravity(finding: Finding) -> tuple[int, bool]:
    """Of two bugs, the one in the tokens goes before the one at the end of a row."""
    return GRAVITY.index(finding.cause), finding.kind is Kind.ENDING


def _numeric_as_a_whole(lab: Lab, one: Finding, forks: list[Fork]) -> Finding:
    """The evidence of all near ties together, in place of that of the first row."""
    gaps = sorted(fork.gap for fork in forks if fork.gap is not None)
    steps = [fork.steps for fork in forks if fork.steps is not None]
    spread = f"{gaps[0]:.3g} to {gaps[-1]:.3g}" if gaps else "not shown"
    in_steps = f" (at most {_counted(max(steps))} {_steps_in_words(lab)})" if steps else ""
    head = (
        f"{len(forks)} of {len(lab.inquiry.tasks)} rows fork, each where two tokens nearly tie: "
        f"gaps {spread}{in_steps}, at the reference's own shape"
    )
    batched = outcome(lab, "reference_batched")
    itself: tuple[str, ...] = ()
    if batched.ran and batched.forks:
        itself = (
            f"the reference without speculation, {lab.rows} rows at a time, differs from itself "
            f"on {len(batched.forks)} of {batched.rows} rows",
        )
    return replace(one, reasons=(head, *itself, *one.reasons[1:]))
