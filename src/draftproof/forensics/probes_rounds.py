"""Facts of rounds: restarts from the middle of a row, one neighbour, known drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.forensics import midway, pairs
from draftproof.forensics.controls import hard_forks, outcome, window_of
from draftproof.forensics.facts import NOT_KNOWN, Fact
from draftproof.forensics.forks import Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import Seen
from draftproof.forensics.probes_outputs import (
    MOVED,
    most,
    places,
    score_changes,
    wrong_alone,
)
from draftproof.forensics.subjects.base import Ability

FEW = 4  # right and wrong first steps at least, before a length between them means anything
EXPECTED = 3.0  # wrong tokens to be expected at an offset before their absence says anything


# -- asked again from the middle of a row ----------------------------------------------------------


def restarts(lab: Lab) -> list[Seen]:
    """What the candidate says when a row's own text is a new prompt; see `midway`."""
    control = outcome(lab, "midway")
    if not control.ran or control.run is None or control.errors:
        return []
    return midway.seen(lab, midway.around(lab, hard_forks(lab)), lab.block + 1, control)


def _forked(lab: Lab) -> set[int]:
    at = places(lab)
    return {at[fork.row] for fork in hard_forks(lab)}


def _share(lab: Lab, flags: Sequence[bool | None]) -> Fact:
    known = [flag for flag in flags if flag is not None]
    if not known:
        return Fact(control=outcome(lab, "midway").note)
    return most(sum(known), len(known), control="new prompts")


def wrong_at_prefill(lab: Lab) -> Fact:
    """At the first token of restarts in rows that fork, and of the rows themselves."""
    rows = _forked(lab)
    flags = [one.off(0) for one in restarts(lab) if one.start.row in rows]
    if flags:
        return _share(lab, flags)
    name = "own" if lab.candidate.batch == 1 else "single"
    run = outcome(lab, name).run
    if run is None:
        return Fact(control=outcome(lab, "midway").note)
    off = [beyond for row, p, _, beyond in score_changes(lab, lab.clean_expected, run) if p == 0]
    return most(sum(off), len(off), control=f"first tokens, {name}")


def wrong_in_first_step(lab: Lab) -> Fact:
    rows = _forked(lab)
    return _share(lab, [one.scores_off(1) for one in restarts(lab) if one.start.row in rows])


def right_afresh(lab: Lab) -> Fact:
    at = places(lab)
    before = {(at[fork.row], fork.divergence.position - 1) for fork in hard_forks(lab)}
    again = [one for one in restarts(lab) if (one.start.row, one.start.after) in before]
    return _share(lab, [not (one.off(1) or one.wrong == 1) for one in again])


def only_beyond_window(lab: Lab) -> Fact:
    """By a declared window and short rows; else by the lengths of right and wrong restarts."""
    size = window_of(lab)
    short = outcome(lab, "near_start") if size else None
    if size and short is not None and short.ran:
        forks = hard_forks(lab)
        beyond = sum(fork.context >= size for fork in forks)
        value = short.clean and beyond == len(forks)
        return Fact(value, beyond, len(forks), "rows, near_start", f"the window is {size}")
    known = [(_length(lab, one), one.off(1)) for one in restarts(lab)]
    right = [length for length, off in known if off is False]
    off = [length for length, flag in known if flag]
    if min(len(right), len(off)) < FEW:
        return NOT_KNOWN
    detail = f"right up to {max(right)} tokens, off from {min(off)} on"
    value = max(right) < min(off)
    return Fact(value, len(off), len(known), "new prompts", detail if value else "")


def _length(lab: Lab, one: Seen) -> int:
    return len(lab.inquiry.tasks[one.start.row].prompt) + one.start.after


# -- one neighbour ---------------------------------------------------------------------------------


def beside(name: str) -> Callable[[Lab], Fact]:
    def probe(lab: Lab) -> Fact:
        if lab.candidate.batch == 1:
            return Fact(control="the candidate takes one row at a time")
        if wrong_alone(lab).value is not False:
            return Fact(control="rows are wrong alone: a neighbour would show nothing")
        control = outcome(lab, name)
        if not control.ran or control.errors:
            return Fact(control=control.note)
        flags = pairs.off(lab, name, hard_forks(lab), control)
        return most(sum(flags), len(flags), control=name)

    return probe


# -- known drafts ----------------------------------------------------------------------------------


def sweep(lab: Lab) -> list[Outcome]:
    """Controls right_0 .. right_K; none where the candidate takes no scripted drafts."""
    k = lab.candidate.k
    if not k or Ability.SCRIPT not in lab.candidate.abilities:
        return []
    found = [outcome(lab, f"right_{right}") for right in range(k + 1)]
    return found if all(one.ran for one in found) else []


def _first(lab: Lab, control: Outcome, right: int) -> tuple[int, int] | None:
    """Block and offset of the earliest fork; the prefill's token is before block 0.

    right = 1:   p | d c | d c | d c      p: prefill, d: right draft, c: correction
    """
    lengths = [len(answer.ids) for answer in lab.clean_expected.answers]
    last = (lab.candidate.k or 0) + 1  # shorter than K at a row's end: offsets say nothing there
    whole = {t.index: n - last for t, n in zip(lab.inquiry.tasks, lengths, strict=True)}
    found = [f.divergence.position for f in control.hard if f.divergence.position < whole[f.row]]
    return divmod(min(found) - 1, right + 1) if found else None


def _scores_moved(lab: Lab, control: Outcome) -> int:
    """Places strictly before a fork whose scores are off."""
    assert control.run is not None
    ends = {places(lab)[f.row]: f.divergence.position for f in control.forks}
    changes = score_changes(lab, lab.clean_expected, control.run)
    return sum(off and place < ends.get(row, place + 1) for row, place, _, off in changes)


def _scripted(probe: Callable[[Lab, list[Outcome]], Fact]) -> Callable[[Lab], Fact]:
    def filled(lab: Lab) -> Fact:
        found = sweep(lab)
        return probe(lab, found) if found else Fact(control="the candidate takes no drafts")

    return filled


def _right_drafts_break(lab: Lab, found: list[Outcome]) -> Fact:
    last, k = found[-1], len(found) - 1
    place, moved = _first(lab, last, k), _scores_moved(lab, last)
    value = moved >= MOVED or (place is not None and place[1] != k)
    return Fact(value, max(moved, len(last.hard)) if value else 0, last.rows, f"right_{k}")


def _bonus_wrong(lab: Lab, found: list[Outcome]) -> Fact:
    last, k = found[-1], len(found) - 1
    place = _first(lab, last, k)
    value = place is not None and place[1] == k and _scores_moved(lab, last) < MOVED
    return Fact(value, len(last.hard) if value else 0, last.rows, f"right_{k}")


def _rejection_breaks(lab: Lab, found: list[Outcome]) -> Fact:
    places_ = [_first(lab, one, right) for right, one in enumerate(found)]
    later = [one for one in places_[:-1] if one is not None]
    value = places_[-1] is None and _scores_moved(lab, found[-1]) < MOVED
    value = value and any(block > 0 for block, _ in later) and all(block > 0 for block, _ in later)
    hard = sum(len(one.hard) for one in found[:-1])
    return Fact(value, hard if value else 0, sum(one.rows for one in found[:-1]), "right_0 ...")


def first_draft_goes_out(lab: Lab) -> Fact:
    """A wrong token at offset 0 that the candidate's own scores do not choose."""
    found = sweep(lab)
    if found:
        first = _first(lab, found[0], 0) == (0, 0)
        return Fact(first, len(found[0].hard) if first else 0, found[0].rows, "right_0")
    wrong, _, asked = _offsets(lab)
    return Fact(wrong > 0, wrong, asked, "new prompts") if asked else _no_offsets(lab)


def later_draft_goes_out(lab: Lab) -> Fact:
    """The same behind accepted drafts; from outside only where it would have shown."""
    found = sweep(lab)
    if len(found) > 2:
        out = [_first(lab, one, j) == (0, j) for j, one in enumerate(found[1:-1], start=1)]
        hits = sum(len(one.hard) for one, goes in zip(found[1:-1], out, strict=True) if goes)
        return Fact(any(out), hits, sum(one.rows for one in found[1:-1]), "right_1 ...")
    wrong, second, asked = _offsets(lab)
    if second:
        return Fact(True, second, asked, "new prompts")
    if lab.candidate.k == 1 or not asked or (asked - wrong) * wrong / asked < EXPECTED:
        return _no_offsets(lab)
    return Fact(False, 0, asked, "new prompts")


def _no_offsets(lab: Lab) -> Fact:
    return Fact(control=outcome(lab, "midway").note or "too few drafts were wrong")


def _offsets(lab: Lab) -> tuple[int, int, int]:
    """Restarts wrong at the first token of a block, at the second, and all; by emission alone.

    afresh   p | d d d b     p: prefill; d: drafts, accepted or corrected; b: bonus
    offset       0 1 2       offset 1 lies in the first block wherever offset 0 was accepted
    """
    asked = [one for one in restarts(lab) if one.wrong != 0]
    passed = [one for one in asked if one.wrong is not None and one.not_own(one.wrong)]
    first = sum(one.wrong == 1 for one in passed)
    second = sum(one.wrong == 2 for one in passed)
    return first, second, len(asked) if any(one.moved for one in asked) else 0


bonus_wrong = _scripted(_bonus_wrong)
right_drafts_break = _scripted(_right_drafts_break)
rejection_breaks = _scripted(_rejection_breaks)
