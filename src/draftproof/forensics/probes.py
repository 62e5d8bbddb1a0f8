"""Fills the facts from what the subjects can be asked: one probe for each, whoever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from draftproof.forensics import jumps, midway, other_setup, pairs, positions
from draftproof.forensics.compare import common_prefix
from draftproof.forensics.controls import hard_forks, outcome, rerun, window_of
from draftproof.forensics.facts import NOT_KNOWN, Fact, Facts
from draftproof.forensics.forks import Fork, Outcome
from draftproof.forensics.kinds import TABLE
from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import Seen
from draftproof.forensics.noise import gap_change
from draftproof.forensics.subjects.base import Ability, Answer, Run

FEW = 4  # right and wrong first steps at least, before a length between them means anything
MOVED = 2  # places with scores beyond rounding, before a control without a fork counts as off
EXPECTED = 3.0  # wrong tokens to be expected at an offset before their absence says anything
EVERYWHERE, LITTLE = 0.6, 0.5  # share of places that are off, and their median in nats


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


# -- outputs ---------------------------------------------------------------------------------------


def base_runs(lab: Lab) -> tuple[Run, Run]:
    """Both sides where the forks are looked at: in clean arithmetic if they fork there."""
    clean = rerun(lab)
    if clean is not None and clean.run is not None and clean.hard:
        return lab.clean_expected, clean.run
    return lab.expected, lab.found


def _rows(lab: Lab) -> Iterator[tuple[Fork, Sequence[int], Sequence[int]]]:
    """Each hard fork with the ids of both sides."""
    expected, found = base_runs(lab)
    at = places(lab)
    for fork in hard_forks(lab):
        yield fork, expected.ids[at[fork.row]], found.ids[at[fork.row]]


def places(lab: Lab) -> dict[int, int]:
    """Place among the tasks, by index of the task."""
    return {task.index: place for place, task in enumerate(lab.inquiry.tasks)}


def tokens_reordered(lab: Lab) -> Fact:
    rows = [(sorted(a) == sorted(b), min(len(a), len(b))) for _, a, b in _rows(lab)]
    same = sum(equal for equal, _ in rows)
    if not rows or (same and min(length for _, length in rows) < 4):
        return NOT_KNOWN
    tokens = sum(length for equal, length in rows if equal)
    return Fact(same == len(rows), tokens if same == len(rows) else 0, tokens, detail="")


def another_rows_answer(lab: Lab) -> Fact:
    expected, _ = base_runs(lab)
    rows, taken, at = list(_rows(lab)), 0, places(lab)
    for fork, _, found in rows:
        shared = [common_prefix(a, found) for n, a in enumerate(expected.ids) if n != at[fork.row]]
        taken += max(shared, default=0) >= max(4, 2 * fork.divergence.position + 1)
    return _most(taken, len(rows), weight=4)


def token_left_out(lab: Lab) -> Fact:
    rows, skipped = list(_rows(lab)), 0
    for fork, expected, found in rows:
        here = fork.divergence.position
        rest, goes_on = expected[here + 1 :], found[here:]
        skipped += common_prefix(rest, goes_on) >= min(3, len(goes_on), len(rest)) > 0
    return _most(skipped, len(rows), weight=3)


def _most(hits: int, trials: int, *, weight: int = 1, control: str = "") -> Fact:
    """True where it was seen in most cases; `weight` observations each."""
    if not trials:
        return Fact(control=control)
    return Fact(2 * hits > trials, hits * weight, trials * weight, control)


def only_ties(lab: Lab) -> Fact:
    forks = outcome(lab, "own").forks if lab.clean else ()
    known = [(f.gap, f.divergence.expected, f.divergence.found) for f in forks if not f.end]
    if not known:
        return NOT_KNOWN
    tied = sum(g == 0 and a is not None and b is not None and a < b for g, a, b in known)
    return Fact(tied == len(known), tied, len(known), "float32")


# -- does a control differ: in its tokens, or in its scores before them ----------------------------


def score_changes(lab: Lab, expected: Run, found: Run) -> Iterator[tuple[int, int, float, bool]]:
    """Row, place, change of the gap and whether it is beyond rounding, up to where tokens part."""
    rows = zip(expected.answers, found.answers, strict=True)
    for row, (a, b) in enumerate(rows):
        if a.error or b.error:
            continue
        same = common_prefix(a.ids, b.ids) + 1
        for place, (one, other) in enumerate(zip(a.tops[:same], b.tops[:same], strict=False)):
            change = gap_change(one, other)
            if change is not None:
                yield row, place, change, lab.beyond(change, one)


def differs(lab: Lab, name: str) -> Fact:
    """Whether the candidate differs in a control that asks the question itself."""
    one = outcome(lab, name)
    if not one.ran or one.stand_in or one.run is None:
        return Fact(control=one.note)
    if one.errors and not one.hard:
        return Fact(control=f"{name}: {one.errors} rows failed")
    moved = [off for _, _, _, off in score_changes(lab, lab.clean_expected, one.run)]
    if one.hard:
        return Fact(True, len(one.hard), one.rows, f"rows, {name}")
    if moved:
        return Fact(sum(moved) >= MOVED, sum(moved), len(moved), f"scores, {name}")
    return Fact(False, 0, one.rows, f"rows, {name}")


def wrong_alone(lab: Lab) -> Fact:
    return differs(lab, "own" if lab.candidate.batch == 1 else "single")


def wrong_without_drafts(lab: Lab) -> Fact:
    return wrong_alone(lab) if lab.candidate.k == 0 else differs(lab, "plain")


def wrong_in_plain_batch(lab: Lab) -> Fact:
    if lab.candidate.batch == 1:
        return Fact(control="the candidate takes one row at a time")
    return differs(lab, "own" if lab.candidate.k == 0 else "plain_batched")


def off_everywhere(lab: Lab) -> Fact:
    name = "own" if lab.candidate.batch == 1 else "single"
    one = outcome(lab, name)
    if not one.ran or one.run is None:
        return Fact(control=one.note)
    seen = sorted(
        (change, off) for _, _, change, off in score_changes(lab, lab.clean_expected, one.run)
    )
    if len(seen) < FEW:
        return Fact(control="no scores are shown")
    off = sum(beyond for _, beyond in seen)
    median = seen[len(seen) // 2][0]
    value = off >= EVERYWHERE * len(seen) and median <= LITTLE
    return Fact(value, off, len(seen), f"scores, {name}", f"typically by {median:.2g}")


# -- the candidate's own choice --------------------------------------------------------------------


def not_own_best(lab: Lab, answer: Answer, dtype: str | None) -> list[int]:
    """Places where another token goes out than the best of the candidate's own scores."""
    ends, least = set(lab.inquiry.eos_token_id or ()), lab.inquiry.min_new_tokens
    band = 2 * lab.noise(dtype).band
    found = []
    for place, (token, top) in enumerate(zip(answer.ids, answer.tops, strict=False)):
        if not top.ids or (place < least and top.ids[0] in ends) or token == top.ids[0]:
            continue
        if top.gap(top.ids[0], token)[0] > max(band, 1e-3):
            found.append(place)
    return found


def _own_best(lab: Lab, run: Run | None, control: str) -> Fact:
    answers = [] if run is None else [one for one in run.answers if not one.error]
    trials = sum(min(len(one.ids), len([t for t in one.tops if t.ids])) for one in answers)
    if not trials:
        return Fact(control=control or "no scores are shown")
    dtype = lab.clean or lab.dtype
    wrong = sum(len(not_own_best(lab, one, dtype)) for one in answers)
    return Fact(not wrong, trials - wrong, trials, control)


def own_best(lab: Lab) -> Fact:
    return _own_best(lab, base_runs(lab)[1], "tokens")


def own_best_alone(lab: Lab) -> Fact:
    one = outcome(lab, "own" if lab.candidate.batch == 1 else "single")
    return _own_best(lab, one.run, "tokens, single" if one.run else one.note)


def own_best_at_prefill(lab: Lab) -> Fact:
    control = outcome(lab, "midway")
    if control.run is None:
        return Fact(control=control.note)
    first = [
        Answer(ids=one.ids[:1], tops=one.tops[:1]) for one in control.run.answers if not one.error
    ]
    return _own_best(lab, Run(answers=tuple(first)), "new prompts")


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
    return _most(sum(known), len(known), control="new prompts")


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
    return _most(sum(off), len(off), control=f"first tokens, {name}")


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
        return _most(sum(flags), len(flags), control=name)

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
    "bonus_wrong": _scripted(_bonus_wrong),
    "right_drafts_break": _scripted(_right_drafts_break),
    "rejection_breaks": _scripted(_rejection_breaks),
    "only_beyond_window": only_beyond_window,
    "off_everywhere": off_everywhere,
    "other_defaults": explained(other_setup.defaults),
    "another_prompt": explained(other_setup.prompts),
    "sampled": explained(other_setup.sampled),
    "positions": explained_positions,
}
