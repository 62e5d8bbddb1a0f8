"""Fills the facts from what the subjects can be asked: one probe for each, whoever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from draftproof.forensics import jumps, other_setup, pairs, positions
from draftproof.forensics.controls import hard_forks, outcome
from draftproof.forensics.facts import NOT_KNOWN, Fact, Facts
from draftproof.forensics.forks import Outcome
from draftproof.forensics.kinds import TABLE
from draftproof.forensics.lab import Lab
from draftproof.forensics.probes_outputs import (
    another_rows_answer,
    base_runs,
    off_everywhere,
    only_ties,
    own_best,
    own_best_alone,
    own_best_at_prefill,
    token_left_out,
    tokens_reordered,
    wrong_alone,
    wrong_in_plain_batch,
    wrong_without_drafts,
)
from draftproof.forensics.probes_rounds import (
    beside,
    bonus_wrong,
    first_draft_goes_out,
    later_draft_goes_out,
    only_beyond_window,
    rejection_breaks,
    right_afresh,
    right_drafts_break,
    sweep,
    wrong_at_prefill,
    wrong_in_first_step,
)
from draftproof.forensics.subjects.base import Ability, Run


def gather(lab: Lab) -> Facts:
    """Fill the facts in order, cheap ones first; what no standing kind asks for is not asked."""
    facts = Facts()
    for name, probe in PROBES.items():
        if name in wanted(facts):
            facts = replace(facts, **{name: probe(lab)})
    return facts


def wanted(facts: Facts) -> set[str]:
    """Facts that could still support, or refute, a kind that nothing has refuted."""
    return {name for entry in TABLE if not entry.refuted_by(facts) for name in entry.expected}


# -- explanations that the target itself is asked for ----------------------------------------------


def explained_positions(lab: Lab) -> Fact:
    """Moved positions, on the most isolated run that is still wrong."""
    if lab.model(lab.clean) is None:
        return Fact(control="no local target")
    tried = 0
    for control, guess in _position_runs(lab):
        if control.run is None or not control.hard:
            continue
        tried += 1
        told = positions.explain(lab, control, guess)
        if told is not None:
            return Fact(True, 3, 3, control.name, "; ".join(told))
    if outcome(lab, "beside_longer").ran and lab.candidate.batch > 1:
        tried += 1
        found = pairs.explain(lab, hard_forks(lab), outcome(lab, "beside_longer"))
        if found is not None:
            return Fact(True, 3, 3, "beside_longer", found)
    alone = outcome(lab, "single")
    if alone.hard:
        tried += 1
        found = jumps.explain(lab, alone)
        if found is not None:
            return Fact(True, 3, 3, "single", found)
    return Fact(False, 0, tried, "runs") if tried else NOT_KNOWN


def _position_runs(lab: Lab) -> Iterator[tuple[Outcome, positions.Guess]]:
    if Ability.K in lab.candidate.abilities:
        plain = outcome(lab, "plain")
        if plain.hard:
            yield plain, positions.small_shifts
            return
        batched = outcome(lab, "plain_batched")
        if batched.hard:
            yield batched, positions.padding
            return
    found = sweep(lab)
    if found:
        yield found[0], positions.strides
    yield outcome(lab, "own"), positions.small_shifts


def explained(which: Callable[[Lab, Run, Run], other_setup.Told]) -> Callable[[Lab], Fact]:
    """Another setup of the candidate, tried on its own row by the local target."""

    def probe(lab: Lab) -> Fact:
        if lab.model(lab.clean) is None:
            return Fact(control="no local target")
        name = "own" if lab.candidate.batch == 1 else "single"
        run = outcome(lab, name).run
        expected, found = (lab.clean_expected, run) if run is not None else base_runs(lab)
        told = which(lab, expected, found)
        if told is None:
            return NOT_KNOWN
        return Fact(told.holds, told.hits, told.trials, f"tokens, {name}", told.words)

    return probe


# -- conditions ------------------------------------------------------------------------------------


def only_prompts_with_eos(lab: Lab) -> Fact:
    ends = set(lab.inquiry.eos_token_id or ())
    marked = {task.index for task in lab.inquiry.tasks if set(task.prompt[:-1]) & ends}
    forks = hard_forks(lab)
    among = sum(fork.row in marked for fork in forks)
    if not marked or among < len(forks):
        return Fact(False, among, len(forks), "rows")
    control = outcome(lab, "unmarked")
    if not control.ran:
        return Fact(control=control.note)
    return Fact(control.clean, among * 2, among * 2, "rows, unmarked")


def gone_without_minimum(lab: Lab) -> Fact:
    if not lab.inquiry.min_new_tokens:
        return Fact(False, 0, 0, "min_new_tokens is not set")
    control = outcome(lab, "no_minimum")
    if not control.ran:
        return Fact(control=control.note)
    return Fact(control.clean, control.rows if control.clean else 0, control.rows, "no_minimum")


PROBES: dict[str, Callable[[Lab], Fact]] = {
    "tokens_reordered": tokens_reordered,
    "another_rows_answer": another_rows_answer,
    "only_ties": only_ties,
    "only_prompts_with_eos": only_prompts_with_eos,
    "gone_without_minimum": gone_without_minimum,
    "token_left_out": token_left_out,
    "own_best": own_best,
    "wrong_alone": wrong_alone,
    "wrong_without_drafts": wrong_without_drafts,
    "wrong_in_plain_batch": wrong_in_plain_batch,
    "own_best_alone": own_best_alone,
    "wrong_at_prefill": wrong_at_prefill,
    "wrong_in_first_step": wrong_in_first_step,
    "right_afresh": right_afresh,
    "own_best_at_prefill": own_best_at_prefill,
    "beside_shorter": beside("beside_shorter"),
    "beside_equal": beside("beside_same"),
    "beside_longer": beside("beside_longer"),
    "first_draft_goes_out": first_draft_goes_out,
    "later_draft_goes_out": later_draft_goes_out,
    "bonus_wrong": bonus_wrong,
    "right_drafts_break": right_drafts_break,
    "rejection_breaks": rejection_breaks,
    "only_beyond_window": only_beyond_window,
    "off_everywhere": off_everywhere,
    "other_defaults": explained(other_setup.defaults),
    "another_prompt": explained(other_setup.prompts),
    "sampled": explained(other_setup.sampled),
    "positions": explained_positions,
}
