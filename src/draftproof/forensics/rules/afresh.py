"""Where the candidate takes neither drafts nor another K: asked again from the middle of its rows.

A server cannot be told what to draft, but a row's own text so far can be a new prompt. Then no
earlier round has left anything behind, and the next token is the prefill's, the one after it the
first step's, and so on: what is wrong from the first step on is no matter of rejections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.forensics import jumps, midway, positions
from draftproof.forensics.compare import compare
from draftproof.forensics.controls import outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import Seen
from draftproof.forensics.rules.base import (
    Reasons,
    Rule,
    gaps_known,
    hard_forks,
    outputs,
    own_choice,
    places,
)
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import Cause, Kind

FEW = 4  # right and wrong first steps at least, before a length between them means anything
OFFSETS = 3.0  # wrong tokens that must be expected at an offset before their absence says anything
LOCAL: Reasons = ("the target in this process (`&target=DIR`), to try moved positions on it",)
SAME: Reasons = ("the same weights, tokenizer, template and number format on both sides",)


def asked_afresh(lab: Lab) -> list[Seen] | None:
    """What the candidate says afresh; None where it can be told what to draft, or not be asked."""
    if Ability.SCRIPT in lab.candidate.abilities:
        return None
    control = outcome(lab, "midway")
    if not control.ran or control.run is None or control.errors:
        return None
    starts = midway.around(lab, hard_forks(lab))
    return midway.seen(lab, starts, lab.block + 1, control)


def _mostly(flags: Sequence[bool | None]) -> bool:
    """At more than half of the places where something was seen."""
    known = [flag for flag in flags if flag is not None]
    return 2 * sum(known) > len(known)


def _off(lab: Lab, seen: Sequence[Seen], index: int) -> bool:
    """Whether a token of the answers is mostly off, in rows that fork."""
    at = places(lab)
    forked = {at[fork.row] for fork in hard_forks(lab)}
    return _mostly([one.off(index) for one in seen if one.start.row in forked])


def right_alone(lab: Lab) -> bool:
    """Whether every row is right when it is the only one."""
    return lab.candidate.batch > 1 and outcome(lab, "single").clean


# -- which token goes out --------------------------------------------------------------------------


def passes_over(lab: Lab) -> str | None:
    """The candidate's own scores are right at most wrong tokens, and something else goes out."""
    passed, forks = own_choice(lab)
    wrong = [(one, one.wrong) for one in asked_afresh(lab) or () if one.wrong is not None]
    afresh = sum(index < len(one.moved) and one.moved[index] is False for one, index in wrong)
    if not passed + afresh or 2 * (passed + afresh) <= forks + len(wrong):
        return None
    more = f", and at {afresh} of {len(wrong)} when asked from other places" if wrong else ""
    return (
        f"at {passed} of {forks} forks{more} the candidate's own scores prefer the reference's "
        "token, and the candidate emits another one"
    )


def another_rows_verdict(lab: Lab) -> Reasons | None:
    """Its own choice goes out where it is alone, and in a batch another token."""
    told = passes_over(lab)
    if told is None or not right_alone(lab):
        return None
    return told, "alone (B = 1) every row is right: what goes out was chosen for another row"


def correction(lab: Lab) -> Reasons | None:
    """A wrong token goes out right behind one that was accepted."""
    offsets = _offsets(lab)
    if offsets is None or not offsets[1]:
        return None
    wrong, second, _ = offsets
    return (
        str(passes_over(lab)),
        f"asked from other places, the first wrong token is the first of a block {wrong} times, "
        f"and {second} times it comes right behind a draft that was accepted: whatever the offset "
        "of the mismatch, the draft's token is emitted",
    )


def unverified(lab: Lab) -> Reasons | None:
    """A wrong token is always the first of a block: the second would show, and never does."""
    offsets = _offsets(lab)
    if offsets is None or offsets[1]:
        return None
    wrong, _, expected = offsets
    if expected < OFFSETS:
        return None
    return (
        str(passes_over(lab)),
        f"asked from other places, the first token of a block is wrong {wrong} times and the one "
        f"behind it never, where {expected:.0f} times would be expected: the first draft is not "
        "verified, the others are",
    )


def _offsets(lab: Lab) -> tuple[int, int, float] | None:
    """Wrong at the first token of a block, at the second, and how often the second should be.

    afresh   p | d d d b     p: prefill; d: drafts, accepted or corrected; b: bonus
    offset       0 1 2       offset 1 lies in the first block wherever offset 0 was accepted;
                             where the first draft is never verified, it always is
    """
    if lab.candidate.k == 1 or passes_over(lab) is None:
        return None
    asked = [one for one in asked_afresh(lab) or () if one.wrong != 0]
    first = sum(one.wrong == 1 for one in asked)
    second = sum(one.wrong == 2 for one in asked)
    tried = len(asked) - first
    return (first, second, tried * first / len(asked)) if first + second else None


# -- one row ---------------------------------------------------------------------------------------


def _before_forks(lab: Lab, back: int) -> list[Seen]:
    """The answers from so many tokens before a fork."""
    at = places(lab)
    forks = {(at[fork.row], fork.divergence.position - back) for fork in hard_forks(lab)}
    return [one for one in asked_afresh(lab) or () if (one.start.row, one.start.after) in forks]


def fresh_prompt(lab: Lab) -> Reasons | None:
    """The first token after a prompt is another one: no drafts, no cache, no neighbour."""
    at_forks = _before_forks(lab, 0)
    wrong = sum(one.wrong == 0 for one in at_forks)
    if not wrong or 2 * wrong <= len(at_forks):
        return None
    return (
        f"given the text up to the fork as a new prompt, alone, the candidate's first token is "
        f"another one at {wrong} of {len(at_forks)} forks: neither drafts nor a cache are needed",
    )


def fresh_prompt_beyond(lab: Lab) -> Reasons | None:
    """The same, by gaps that no other arithmetic explains."""
    return fresh_prompt(lab) if gaps_known(lab) else None


def _first_step(lab: Lab) -> Reasons | None:
    """The first step after a prompt is wrong already, in a row that is alone."""
    asked = asked_afresh(lab)
    if asked is None or right_alone(lab) or _off(lab, asked, 0) or not _off(lab, asked, 1):
        return None
    wrong = sum(one.off(1) is True for one in asked)
    return (
        f"given its own text so far as a new prompt, alone, the candidate is right in the prefill "
        f"and off in the first step after it, at {wrong} of {len(asked)} places",
    )


def step_marked(lab: Lab) -> Reasons | None:
    """Only prompts with eos in them, and not without the eos."""
    told, ends = _first_step(lab), set(lab.inquiry.eos_token_id or ())
    marked = {task.index for task in lab.inquiry.tasks if set(task.prompt[:-1]) & ends}
    broken = {fork.row for fork in hard_forks(lab)}
    if told is None or not broken <= marked or not outcome(lab, "unmarked").clean:
        return None
    return (
        *told,
        f"{len(broken)} rows differ, all with the eos id inside the prompt; with another token in "
        "its place none does",
        "the mask is inferred from token ids: pad equals eos",
    )


def step_window(lab: Lab) -> Reasons | None:
    """Right up to a number of tokens, and off beyond it."""
    told = _first_step(lab)
    if told is None:
        return None
    known = [(_context(lab, one), one.off(1)) for one in asked_afresh(lab) or ()]
    right = [length for length, off in known if off is False]
    off = [length for length, off in known if off]
    if min(len(right), len(off)) < FEW or max(right) >= min(off):
        return None
    return (
        *told,
        f"up to {max(right)} tokens every first step is right, from {min(off)} on every one is "
        "off: something is to be forgotten there, and is not",
    )


def _context(lab: Lab, one: Seen) -> int:
    return len(lab.inquiry.tasks[one.start.row].prompt) + one.start.after


def step_positions(lab: Lab) -> Reasons | None:
    """Moved positions give its tokens; without a model, both numbers are low."""
    told = _first_step(lab)
    if told is None:
        return None
    if lab.model(None) is not None:
        moved = positions.explain(lab, outcome(lab, "own"), positions.small_shifts)
        return moved and (*told, *moved)
    match = compare(*outputs(lab))
    if match.exact / match.rows > 0.1 or match.partial > 0.25:
        return None
    return (
        *told,
        f"exact match {match.exact}/{match.rows} and partial match {match.partial:.0%}: both low",
    )


def step(lab: Lab) -> Reasons | None:
    """Something that every step does."""
    return _first_step(lab)


# -- what earlier rounds leave behind --------------------------------------------------------------


def _history(lab: Lab) -> Reasons | None:
    """Right afresh, wrong after a while: the text is the same, the cache is not."""
    asked = asked_afresh(lab)
    if asked is None or right_alone(lab) or passes_over(lab) is not None:
        return None
    again = _before_forks(lab, 1)
    right = [one for one in again if one.off(1) is False or (one.off(1) is None and one.wrong != 1)]
    if not again or 2 * len(right) <= len(again) or _off(lab, asked, 0) or _off(lab, asked, 1):
        return None
    return (
        "the candidate's own scores choose the wrong token at the forks, alone (B = 1) as well",
        f"given the same text as a new prompt it is right there, at {len(right)} of {len(again)} "
        "forks: what earlier rounds left behind is read later",
    )


def history_positions(lab: Lab) -> Reasons | None:
    """Positions that jump now and then give the candidate's own scores."""
    told = _history(lab)
    moved = None if told is None else jumps.explain(lab, outcome(lab, "single"))
    return None if told is None or moved is None else (*told, moved)


def history(lab: Lab) -> Reasons | None:
    """Stale entries: positions have been tried."""
    return _history(lab) if lab.model(None) is not None else None


def history_untried(lab: Lab) -> Reasons | None:
    """Stale entries, as far as anybody can tell."""
    return _history(lab)


def bug_rule(
    name: str,
    kind: Kind,
    says: str,
    holds: Callable[[Lab], Reasons | None],
    missing: Reasons = (),
) -> Rule:
    return Rule(name=name, cause=Cause.BUG, kind=kind, says=says, holds=holds, missing=missing)


AFRESH: tuple[Rule, ...] = (
    bug_rule(
        "another row's verdict",
        Kind.ROW_MIXUP,
        "the candidate's own choice goes out alone, and another token in a batch",
        another_rows_verdict,
    ),
    bug_rule(
        "correction, asked afresh",
        Kind.CORRECTION,
        "not its own choice, also right behind an accepted draft",
        correction,
    ),
    bug_rule(
        "first draft, asked afresh",
        Kind.UNVERIFIED,
        "not its own choice, and never right behind an accepted draft",
        unverified,
    ),
    bug_rule(
        "another model",
        Kind.UNKNOWN,
        "the first token after a fresh prompt differs by more than any arithmetic",
        fresh_prompt_beyond,
        missing=SAME,
    ),
    Rule(
        name="another model or arithmetic",
        cause=Cause.UNDECIDED,
        says="the first token after a fresh prompt differs",
        holds=fresh_prompt,
        missing=SAME,
    ),
    bug_rule(
        "first step, eos in the prompt",
        Kind.PADDING_MASK,
        "alone, the first step is off, and only where the prompt contains eos",
        step_marked,
    ),
    bug_rule(
        "first step, beyond a length",
        Kind.WINDOW,
        "alone, the first step is right up to a number of tokens and off beyond it",
        step_window,
    ),
    bug_rule(
        "first step, moved positions",
        Kind.POSITIONS,
        "alone, the first step is off, and moved positions give the scores",
        step_positions,
    ),
    bug_rule(
        "first step",
        Kind.UNKNOWN,
        "alone, the first step after a prompt is off",
        step,
        missing=LOCAL,
    ),
    bug_rule(
        "earlier rounds, moved positions",
        Kind.POSITIONS,
        "right afresh and wrong after a while, and positions that jump give the scores",
        history_positions,
    ),
    bug_rule(
        "earlier rounds",
        Kind.STALE_KV,
        "right afresh and wrong after a while, and no positions explain it",
        history,
    ),
    bug_rule(
        "earlier rounds, untried",
        Kind.STALE_KV,
        "right afresh and wrong after a while; no target to try positions on",
        history_untried,
        missing=LOCAL,
    ),
)
