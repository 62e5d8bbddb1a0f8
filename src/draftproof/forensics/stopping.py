"""Rows that agree until one side ends: a rule that both sides must share, or a bug in a block?

These rows are judged apart from those whose tokens differ, and in groups of rows that ended for
the same reason: a run may hold a missing eos, a length that is one too short and a real bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftproof.forensics import midway
from draftproof.forensics.controls import outcome
from draftproof.forensics.forks import Fork
from draftproof.forensics.lab import Lab
from draftproof.forensics.midway import Start
from draftproof.forensics.probes_outputs import places
from draftproof.forensics.subjects.base import Answer, Run
from draftproof.forensics.verdicts import Cause, Finding, Kind

ASKED = 4  # rows of a group that are asked again from shortly before their end
LENGTH = "its length"
MEND = "make eos, stop strings and the length limit the same on both sides"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rows that the reference ended for one reason, with the candidate on one side of it.

    how: LENGTH, "eos 2", "a stop string"
    """

    how: str
    forks: tuple[Fork, ...]

    @property
    def late(self) -> bool:
        """Whether the candidate goes on where the reference has ended."""
        return all((fork.overshoot or 0) > 0 for fork in self.forks)

    @property
    def sizes(self) -> set[int]:
        """By how many tokens the lengths differ."""
        return {fork.overshoot or 0 for fork in self.forks}


def judged(lab: Lab, forks: Sequence[Fork]) -> dict[int, Finding]:
    """What the ends of these rows mean, by task index."""
    found: dict[int, Finding] = {}
    for group in _groups(lab, forks):
        found |= _without_drafts(lab, group)
        rest = [fork.row for fork in group.forks if fork.row not in found]
        if rest:
            finding = _asked_again(lab, group) or _by_lengths(lab, group)
            found |= dict.fromkeys(rest, finding)
    return found


def _groups(lab: Lab, forks: Sequence[Fork]) -> Iterator[Group]:
    keys = [(ending(lab, fork.row), (fork.overshoot or 0) > 0) for fork in forks]
    for key in dict.fromkeys(keys):
        own = tuple(fork for fork, other in zip(forks, keys, strict=True) if other == key)
        yield Group(how=key[0], forks=own)


def ending(lab: Lab, row: int) -> str:
    """Why the reference ended a row. Each eos id is a reason of its own: a side may know only some
    of them."""
    answer = lab.expected.answers[places(lab)[row]]
    if len(answer.ids) >= lab.inquiry.max_new_tokens:
        return LENGTH
    by_eos = answer.finish_reason == "eos" or not lab.inquiry.stop_strings
    known = lab.inquiry.eos_token_id
    if answer.ids and (by_eos if known is None else answer.ids[-1] in known):
        return f"eos {answer.ids[-1]}"
    return "a stop string"


def _bug(group: Group, *reasons: str) -> Finding:
    return Finding(
        cause=Cause.BUG,
        kind=Kind.ENDING,
        rule="ends inside a block",
        reasons=(_head(group), *reasons),
    )


def _harness(group: Group, *reasons: str) -> Finding:
    return Finding(
        cause=Cause.HARNESS,
        rule="other rules of ending",
        reasons=(_head(group), *reasons, MEND),
    )


def _head(group: Group) -> str:
    sizes = ", ".join(f"{size:+d}" for size in sorted(group.sizes))
    return (
        f"{len(group.forks)} rows, ended by {group.how} in the reference, agree until one side "
        f"ends; lengths differ by {sizes} tokens"
    )


# -- the candidate without drafts ------------------------------------------------------------------


def _without_drafts(lab: Lab, group: Group) -> dict[int, Finding]:
    """Rows that K = 0 decides: it ends them as the reference does, or as the candidate does."""
    plain = outcome(lab, "plain")
    if not plain.ran or plain.stand_in or plain.run is None:
        return {}
    at, found = places(lab), {}
    for fork in group.forks:
        ids = plain.run.answers[at[fork.row]].ids
        if ids == lab.expected.answers[at[fork.row]].ids:
            told = "without speculation (K = 0, B = 1) the row ends where the reference does"
            found[fork.row] = _bug(group, told)
        elif ids == lab.found.answers[at[fork.row]].ids:
            found[fork.row] = _harness(group, "without speculation (K = 0, B = 1) as well")
    return found


# -- asked again from shortly before the end -------------------------------------------------------


def _asked_again(lab: Lab, group: Group) -> Finding | None:
    """A rule ends a text at one place; a block ends it wherever the block happens to end.

    row         ... u v w x E        E: eos, where the reference ends
    from w          w > x E          a candidate that looks for eos at the end of a block
    from v        v > w x E y z      ends the same text at other places
    """
    if not all(midway.can_start(side, lab) for side in (lab.reference, lab.candidate)):
        return None
    if not lab.controls:
        return None
    by_row = _ends_by_row(lab, group)
    if any(_heard_now(fork, one) for fork, one in zip(group.forks, by_row, strict=False)):
        return _bug(group, "asked again from shortly before, a row ends where the reference does")
    ends = [one for one in by_row if one]
    if not any(len(one) > 1 for one in ends):
        return None
    sizes = sorted({end.size for one in ends for end in one})
    if all(len({end.size for end in one}) == 1 for one in ends) and sizes != [0]:
        if _within_blocks(lab, group, [end for one in ends for end in one]):
            return None
        return _harness(
            group, "asked again from other places shortly before, every row ends as before"
        )
    if _has_its_own_limit(lab, group, [end for one in ends for end in one]):
        return _harness(group, "their number of tokens is always the same: another limit")
    return _bug(
        group,
        "asked again from other places shortly before, the same text ends elsewhere: lengths "
        f"differ by {', '.join(f'{size:+d}' for size in sizes)}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Where a row ended that was asked again.

    size:   how many tokens longer the candidate's answer is
    length: of the candidate's answer
    by_eos: whether the candidate met an eos first, and no limit
    """

    size: int
    length: int
    by_eos: bool


def _heard_now(fork: Fork, ends: Sequence[End]) -> bool:
    """An eos that the candidate went past ends the same text when it is asked from later on."""
    return (fork.overshoot or 0) > 0 and any(end.by_eos and end.size == 0 for end in ends)


def _within_blocks(lab: Lab, group: Group, ends: Sequence[End]) -> bool:
    """Rows overshoot by less than a block, each by a number of its own, to no eos.

    A block ends where a draft was wrong, and so at the same token wherever it began: such rows end
    as before. Rules of the candidate's own would end them alike, or by a text that ends rows.
    """
    sizes = {end.size for end in ends}
    block = lab.candidate.k
    if block is None or not group.late or any(end.by_eos for end in ends):
        return False
    return len(sizes) > 1 and min(sizes) > 0 and max(sizes) <= block


def _has_its_own_limit(lab: Lab, group: Group, ends: Sequence[End]) -> bool:
    """The candidate counts to a number of its own, wherever it is asked from."""
    first = {len(answer.ids) for answer in _answers(lab, group, lab.found)}
    if not group.late:
        # near its end a row is asked for fewer tokens than that number
        return len(first) == 1 and all(end.size == 0 for end in ends)
    return len(first | {end.length for end in ends if not end.by_eos}) == 1


def _answers(lab: Lab, group: Group, run: Run) -> list[Answer]:
    at = places(lab)
    return [run.answers[at[fork.row]] for fork in group.forks]


def _ends_by_row(lab: Lab, group: Group) -> list[list[End]]:
    """By row: its ends from each start that can be compared."""
    forks = group.forks[:ASKED]
    found: list[list[End]] = [[] for _ in forks]
    for back in range(1, lab.block + 3):
        for place, end in _ends_from(lab, group, forks, back):
            found[place].append(end)
    return found


def _ends_from(
    lab: Lab, group: Group, forks: Sequence[Fork], back: int
) -> Iterator[tuple[int, End]]:
    """From `back` tokens before the earlier of both ends: which fork, and where it ended."""
    at, text = places(lab), lab.expected.ids
    ends = [min(len(text[at[f.row]]), len(lab.found.ids[at[f.row]])) for f in forks]
    chosen = [place for place, end in enumerate(ends) if end > back]
    if not chosen:
        return
    starts = [Start(row=at[forks[place].row], after=ends[place] - back) for place in chosen]
    # a row that its length ended must meet its limit again; others get room to end by themselves
    by_length = group.how == LENGTH and group.late
    new = back if by_length else back + 2 * lab.block
    asked = midway.question(lab, starts, new, text)
    runs = [side.run(asked) for side in (lab.reference, lab.candidate)]
    for place, start, a, b in zip(chosen, starts, *(run.answers for run in runs), strict=True):
        same = min(len(a.ids), len(b.ids))
        whole = start.after + len(a.ids) == len(text[start.row]) or not group.late
        if not a.error and not b.error and a.ids[:same] == b.ids[:same] and whole:
            by_eos = b.ids[-1:] != () and b.ids[-1] in (lab.inquiry.eos_token_id or ())
            yield place, End(size=len(b.ids) - len(a.ids), length=len(b.ids), by_eos=by_eos)


# -- lengths alone ---------------------------------------------------------------------------------


def _by_lengths(lab: Lab, group: Group) -> Finding:
    """Nothing can be asked: do the lengths look like a rule?"""
    if _irregular(lab, group):
        return _bug(group, "no rule of the settings ends rows like that")
    return _harness(group, "by one rule in all of them")


def _irregular(lab: Lab, group: Group) -> bool:
    """Rows that end for the same reason do not overshoot, or they overshoot within a block."""
    if not group.late:
        return False
    answers = zip(lab.inquiry.tasks, lab.expected.answers, lab.found.answers, strict=True)
    equal = [task.index for task, a, b in answers if a.ids == b.ids and not a.error]
    if any(ending(lab, row) == group.how for row in equal):
        return True
    if _stops_at_its_limit(lab, group):
        return False
    block = lab.candidate.k
    return len(group.sizes) > 1 and (block is None or max(group.sizes) <= block)


def _stops_at_its_limit(lab: Lab, group: Group) -> bool:
    """Every row goes on to one and the same length: a rule was not there, or was another one."""
    lengths = {len(answer.ids) for answer in _answers(lab, group, lab.found)}
    return len(lengths) == 1 and group.how != LENGTH and lengths == {lab.inquiry.max_new_tokens}
