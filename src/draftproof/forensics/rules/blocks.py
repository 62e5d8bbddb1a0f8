"""Inside the block: drafts whose errors are known say where and after what it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.forensics import positions
from draftproof.forensics.controls import outcome
from draftproof.forensics.forks import Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import Reasons, Rule
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import Cause, Kind


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Controls right_0 .. right_K: where each first breaks, as (block, offset in it)."""

    first: list[tuple[int, int] | None]

    @property
    def k(self) -> int:
        return len(self.first) - 1

    def only(self, index: int) -> bool:
        """Whether exactly one of them breaks."""
        return [i for i, place in enumerate(self.first) if place] == [index]


def _sweep(lab: Lab) -> _Sweep | None:
    """None where the candidate takes no scripted drafts, or plain decoding is broken already."""
    k = lab.candidate.k
    if not k or Ability.SCRIPT not in lab.candidate.abilities or not outcome(lab, "plain").clean:
        return None
    lengths = {
        task.index: len(answer.ids)
        for task, answer in zip(lab.inquiry.tasks, lab.clean_expected.answers, strict=True)
    }
    # the last block of a row is shorter than K: offsets in it say nothing
    whole = {row: length - (k + 1) for row, length in lengths.items()}
    return _Sweep([_first_place(outcome(lab, f"right_{j}"), j, whole) for j in range(k + 1)])


def _first_place(control: Outcome, right: int, whole: dict[int, int]) -> tuple[int, int] | None:
    """Block and offset of the earliest fork; the prefill's token is before block 0.

    right = 1:   p | d c | d c | d c      p: prefill, d: right draft, c: correction
    whole:       by row, the tokens before its last block
    """
    forks = [fork for fork in control.hard if fork.divergence.position < whole[fork.row]]
    places = [fork.divergence.position for fork in forks]
    if not places:
        return None
    return divmod(min(places) - 1, right + 1)


def bonus(lab: Lab) -> Reasons | None:
    """Right after K acceptances, and at no other place."""
    sweep = _sweep(lab)
    if sweep is None or not sweep.only(sweep.k) or sweep.first[-1] is None:
        return None
    block, offset = sweep.first[-1]
    if offset != sweep.k:
        return None
    return (
        f"only fully accepted blocks differ, at offset {offset} of block {block}: the bonus token",
    )


def unverified(lab: Lab) -> Reasons | None:
    """The first draft token goes out although it is wrong; every other mistake is caught."""
    sweep = _sweep(lab)
    if sweep is None or sweep.first[0] != (0, 0) or not sweep.only(0):
        return None
    return ("a wrong first draft token is emitted; wrong tokens at later offsets are caught",)


def correction(lab: Lab) -> Reasons | None:
    """The first wrong draft token goes out, at whatever offset it is."""
    sweep = _sweep(lab)
    if sweep is None or sweep.first[-1] is not None:
        return None
    if sweep.first[:-1] != [(0, offset) for offset in range(sweep.k)]:
        return None
    return ("the first wrong draft token of a block is emitted, whatever its offset",)


def rejection_positions(lab: Lab) -> Reasons | None:
    """It takes a rejection, and positions that advance by the fed block give the tokens."""
    if _after_rejections(lab) is None:
        return None
    return positions.explain(lab, outcome(lab, "right_0"), positions.strides)


def rejection(lab: Lab) -> Reasons | None:
    """It takes a rejection, and shows in a later block."""
    return _after_rejections(lab)


def _after_rejections(lab: Lab) -> Reasons | None:
    sweep = _sweep(lab)
    if sweep is None or sweep.first[-1] is not None:
        return None
    broken = [(j, place) for j, place in enumerate(sweep.first) if place is not None]
    if not broken or any(block == 0 for _, (block, _) in broken):
        return None
    worst, (block, _) = broken[0]
    return (
        "drafts that are all right leave the output right; rejected ones do not",
        f"with {worst} right drafts of {sweep.k} the first block agrees and block {block} differs: "
        "what a rejection leaves behind is read later",
    )


BLOCKS: tuple[Rule, ...] = (
    Rule(
        name="bonus token",
        cause=Cause.BUG,
        kind=Kind.CORRECTION,
        says="known drafts: only after K acceptances, at offset K",
        holds=bonus,
    ),
    Rule(
        name="first draft unverified",
        cause=Cause.BUG,
        kind=Kind.UNVERIFIED,
        says="known drafts: only a wrong first token goes out",
        holds=unverified,
    ),
    Rule(
        name="correction token",
        cause=Cause.BUG,
        kind=Kind.CORRECTION,
        says="known drafts: the first wrong token goes out, whatever its offset",
        holds=correction,
    ),
    Rule(
        name="after a rejection, moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="known drafts: it takes a rejection, and positions that skip the rejected give it",
        holds=rejection_positions,
    ),
    Rule(
        name="after a rejection",
        cause=Cause.BUG,
        kind=Kind.STALE_KV,
        says="known drafts: it takes a rejection and shows in a later block",
        holds=rejection,
    ),
)
