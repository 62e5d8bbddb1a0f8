"""Facts of the runs themselves: tokens, scores, and whether a token is the candidate's own best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftproof.forensics.compare import common_prefix
from draftproof.forensics.controls import hard_forks, outcome, rerun
from draftproof.forensics.facts import NOT_KNOWN, Fact
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.noise import gap_change
from draftproof.forensics.subjects.base import Answer, Run

MOVED = 2  # places with scores beyond rounding, before a control without a fork counts as off
EVERYWHERE, LITTLE = 0.6, 0.5  # share of places that are off, and their median in nats


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
    return most(taken, len(rows), weight=4)


def token_left_out(lab: Lab) -> Fact:
    rows, skipped = list(_rows(lab)), 0
    for fork, expected, found in rows:
        here = fork.divergence.position
        rest, goes_on = expected[here + 1 :], found[here:]
        skipped += common_prefix(rest, goes_on) >= min(3, len(goes_on), len(rest)) > 0
    return most(skipped, len(rows), weight=3)


def most(hits: int, trials: int, *, weight: int = 1, control: str = "") -> Fact:
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
    if len(seen) < 2 * MOVED:
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


def share_of_best(lab: Lab, run: Run | None, control: str) -> Fact:
    answers = [] if run is None else [one for one in run.answers if not one.error]
    trials = sum(min(len(one.ids), len([t for t in one.tops if t.ids])) for one in answers)
    if not trials:
        return Fact(control=control or "no scores are shown")
    dtype = lab.clean or lab.dtype
    wrong = sum(len(not_own_best(lab, one, dtype)) for one in answers)
    return Fact(not wrong, trials - wrong, trials, control)


def own_best(lab: Lab) -> Fact:
    return share_of_best(lab, base_runs(lab)[1], "tokens")


def own_best_alone(lab: Lab) -> Fact:
    one = outcome(lab, "own" if lab.candidate.batch == 1 else "single")
    return share_of_best(lab, one.run, "tokens, single" if one.run else one.note)


def own_best_at_prefill(lab: Lab) -> Fact:
    control = outcome(lab, "midway")
    if control.run is None:
        return Fact(control=control.note)
    first = [
        Answer(ids=one.ids[:1], tops=one.tops[:1]) for one in control.run.answers if not one.error
    ]
    return share_of_best(lab, Run(answers=tuple(first)), "new prompts")
