"""The decision table: what each pattern of evidence means. Read from the top; the first that holds
speaks.

A rule gets the lab and returns the reasons for which it holds, or None. It asks for the controls
it needs, so a cheap rule that holds spares the dear ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.forensics import positions
from draftproof.forensics.compare import common_prefix, compare
from draftproof.forensics.controls import outcome, window_of
from draftproof.forensics.forks import Fork, Outcome
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import Cause, Kind

Reasons = tuple[str, ...]
LOW, HIGH = 0.5, 0.6  # of the paper's two numbers: partial match below, or above


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One line of the table.

    says:  the pattern in words, for the documentation and the report
    holds: the reasons, or None
    """

    name: str
    cause: Cause
    says: str
    holds: Callable[[Lab], Reasons | None]
    kind: Kind | None = None
    missing: Reasons = ()


def _hard(lab: Lab) -> tuple[Fork, ...]:
    """Forks of the run as asked that rounding does not explain; else those of the clean rerun."""
    forks = lab.forks(lab.expected, lab.found, lab.dtype)
    hard = tuple(fork for fork in forks if fork.hard)
    return outcome(lab, "own").hard if lab.clean else hard


def _found(lab: Lab) -> tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]]:
    """Ids of both sides where the hard forks are."""
    own = outcome(lab, "own")
    if lab.clean and own.run is not None:
        return lab.clean_expected.ids, own.run.ids
    return lab.expected.ids, lab.found.ids


def _count(forks: Sequence[Fork], lab: Lab) -> str:
    return f"{len(forks)} of {len(lab.inquiry.tasks)} rows"


# -- can anybody be trusted ------------------------------------------------------------------------


def reference_unstable(lab: Lab) -> Reasons | None:
    """A/A on the reference."""
    again = outcome(lab, "again")
    if again.errors:
        return (f"asked a second time, the reference failed on {again.errors} rows",)
    if again.broken:
        return (f"the reference contradicts itself on {_count(again.hard, lab)}",)
    return None


def candidate_unstable(lab: Lab) -> Reasons | None:
    """A/A on the candidate."""
    again = outcome(lab, "again_candidate")
    if again.errors:
        return (f"asked a second time, the candidate failed on {again.errors} rows",)
    if again.broken:
        return (f"the candidate changes its mind between calls on {_count(again.hard, lab)}",)
    return None


# -- the right tokens in the wrong place -----------------------------------------------------------


def delivered_out_of_order(lab: Lab) -> Reasons | None:
    """Every differing row holds the reference's tokens, in another order."""
    expected, found = _found(lab)
    rows = [fork.row for fork in _hard(lab)]
    at = _places(lab)
    same = [r for r in rows if sorted(expected[at[r]]) == sorted(found[at[r]])]
    if not rows or len(same) < len(rows) or min(len(expected[at[r]]) for r in rows) < 4:
        return None
    return (f"all {len(rows)} differing rows hold exactly the reference's tokens, re-ordered",)


def rows_exchanged(lab: Lab) -> Reasons | None:
    """A row holds another row's answer."""
    expected, found = _found(lab)
    taken = []
    at = _places(lab)
    for fork in _hard(lab):
        own = at[fork.row]
        for other, ids in enumerate(expected):
            shared = common_prefix(ids, found[own])
            if other != own and shared >= 4 and shared > 2 * fork.divergence.position:
                taken.append(f"row {own} begins with {shared} tokens of row {other}'s answer")
                break
    return tuple(taken[:3]) if taken and len(taken) * 2 > len(_hard(lab)) else None


def _places(lab: Lab) -> dict[int, int]:
    return {task.index: place for place, task in enumerate(lab.inquiry.tasks)}


# -- the end of a row ------------------------------------------------------------------------------


def _only_ends(lab: Lab) -> bool:
    forks = _hard(lab)
    return bool(forks) and all(fork.overshoot is not None for fork in forks)


def _overshoots(lab: Lab) -> str:
    sizes = sorted({fork.overshoot or 0 for fork in _hard(lab)})
    return ", ".join(f"{size:+d}" for size in sizes)


def ends_inside_a_block(lab: Lab) -> Reasons | None:
    """Only the ends differ, and not without speculation."""
    if not _only_ends(lab):
        return None
    plain = outcome(lab, "plain")
    if plain.clean:
        return (
            f"{_count(_hard(lab), lab)} agree until one side ends; lengths differ by "
            f"{_overshoots(lab)} tokens",
            "without speculation (K = 0, B = 1) every row ends where the reference does",
        )
    if not plain.ran and _varies(lab):
        return (
            f"rows agree until one side ends, and overshoot by {_overshoots(lab)} tokens: "
            "a rule of the settings would give the same number everywhere",
        )
    return None


def _varies(lab: Lab) -> bool:
    sizes = {fork.overshoot or 0 for fork in _hard(lab)}
    longest = lab.candidate.k
    return len(sizes) > 1 and min(sizes) > 0 and (longest is None or max(sizes) <= longest)


def other_rules_of_ending(lab: Lab) -> Reasons | None:
    """Only the ends differ, and without speculation as well: the sides were asked differently."""
    if not _only_ends(lab):
        return None
    plain = outcome(lab, "plain")
    where = "also without speculation" if plain.ran else "everywhere by the same rule"
    return (
        f"{_count(_hard(lab), lab)} agree until one side ends; lengths differ by "
        f"{_overshoots(lab)} tokens, {where}",
        "make eos, stop strings and the length limit the same on both sides",
    )


# -- model features --------------------------------------------------------------------------------


def processors(lab: Lab) -> Reasons | None:
    """The difference goes away with the processor."""
    if outcome(lab, "no_minimum").clean and outcome(lab, "plain").clean:
        return (
            "without min_new_tokens nothing differs",
            "without speculation (K = 0) min_new_tokens is applied correctly",
        )
    return None


def window(lab: Lab) -> Reasons | None:
    """Nothing differs until something must be forgotten."""
    size = window_of(lab)
    if size is None or not outcome(lab, "near_start").clean:
        return None
    if any(fork.context < size for fork in _hard(lab)):
        return None
    full = lab.candidate.k or 0
    if Ability.SCRIPT in lab.candidate.abilities and outcome(lab, f"right_{full}").clean:
        return None  # it takes a rejection, which a window does not
    return (
        f"no row differs before {size} tokens, the model's sliding window",
        "short prompts with short outputs, inside the window, agree",
    )


# -- without speculation ---------------------------------------------------------------------------


def ties(lab: Lab) -> Reasons | None:
    """Equal logits, always the higher id, and float32 changes nothing."""
    if not lab.clean:
        return None
    forks = outcome(lab, "own").forks
    pairs = [(f.gap, f.divergence.expected, f.divergence.found) for f in forks]
    if not pairs or any(gap != 0 or a is None or b is None or b < a for gap, a, b in pairs):
        return None
    return (
        f"at all {len(pairs)} forks the two logits are equal to the last bit, in float32 too",
        "and the candidate always takes the higher token id",
    )


def marked_prompts(lab: Lab) -> Reasons | None:
    """Plain decoding fails on exactly the prompts that contain eos."""
    plain, ends = outcome(lab, "plain"), lab.inquiry.eos_token_id or ()
    marked = {t.index for t in lab.inquiry.tasks if set(t.prompt[:-1]) & set(ends)}
    broken = {fork.row for fork in plain.hard}
    if not plain.broken or not broken <= marked or len(marked) == len(lab.inquiry.tasks):
        return None
    return (
        f"plain decoding at B = 1 differs in {len(broken)} rows, all with the eos id inside the "
        "prompt; no row without it differs",
        "the mask is inferred from token ids: pad equals eos",
    )


def plain_positions(lab: Lab) -> Reasons | None:
    """Plain decoding fails, and moved positions give its tokens."""
    plain = outcome(lab, "plain")
    if not plain.broken:
        return None
    told = positions.explain(lab, plain, positions.small_shifts)
    return told and (f"plain decoding at B = 1 differs on {_count(plain.hard, lab)}", *told)


def plain_two_numbers(lab: Lab) -> Reasons | None:
    """The paper's rule on plain decoding: exact low and partial low."""
    plain = outcome(lab, "plain")
    if not plain.broken or plain.run is None:
        return None
    match = compare(lab.clean_expected.ids, plain.run.ids)
    if match.exact / match.rows > LOW or match.partial > LOW:
        return None
    return (
        f"plain decoding at B = 1 differs on {_count(plain.hard, lab)}",
        f"exact match and partial match are both low ({match.partial:.0%}): wrong from the start",
    )


def plain_differs(lab: Lab) -> Reasons | None:
    """Whatever it is, it needs neither speculation nor a batch."""
    plain = outcome(lab, "plain")
    if not plain.broken:
        return None
    return (f"plain decoding at B = 1 differs on {_count(plain.hard, lab)} beyond the noise",)


# -- the batch -------------------------------------------------------------------------------------


def _needs_a_batch(lab: Lab) -> Outcome | None:
    """The plain batched run where it is broken and plain single rows are not."""
    batched = outcome(lab, "plain_batched")
    return batched if batched.broken and outcome(lab, "plain").clean else None


def any_neighbour(lab: Lab) -> Reasons | None:
    """A neighbour that is no longer than the row is enough."""
    if _needs_a_batch(lab) is None:
        return None
    shorter, same = outcome(lab, "shorter"), outcome(lab, "same")
    if not shorter.broken and not same.broken:
        return None
    which = "a shorter neighbour" if shorter.broken else "a neighbour of the same length"
    return (
        "plain decoding agrees at B = 1 and differs in the batch",
        f"{which} changes a row: what belongs to one row is read for another",
    )


def longer_neighbour_positions(lab: Lab) -> Reasons | None:
    """Only padded rows, and moved positions give their tokens."""
    batched = _needs_a_batch(lab)
    if batched is None or not outcome(lab, "longer").broken:
        return None
    told = positions.explain(lab, batched, positions.padding)
    return told and (
        "plain decoding agrees at B = 1; in a batch only a longer neighbour changes a row",
        *told,
    )


def longer_neighbour(lab: Lab) -> Reasons | None:
    """Only padded rows, and no position explains them."""
    if _needs_a_batch(lab) is None or not outcome(lab, "longer").broken:
        return None
    return (
        "plain decoding agrees at B = 1; in a batch only a longer neighbour changes a row",
        "no shift of positions gives the candidate's tokens: padding is attended to",
    )


# -- inside the block: drafts whose errors are known -----------------------------------------------


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


def ragged_only(lab: Lab) -> Reasons | None:
    """Right alone, right without drafts: it takes rows that accept different numbers."""
    if not outcome(lab, "single").clean or not outcome(lab, "plain_batched").clean:
        return None
    if not lab.candidate.k or not outcome(lab, "own").broken:
        return None
    return (
        "every row agrees alone (B = 1), and in the batch without drafts (K = 0)",
        "it takes a batch in which rows accept different numbers of drafts",
    )


def ragged_low(lab: Lab) -> Reasons | None:
    """The paper's rule: both numbers low."""
    told, match = ragged_only(lab), compare(*_found(lab))
    if told is None or match.partial > HIGH or match.exact / match.rows > LOW:
        return None
    return (*told, f"exact match and partial match ({match.partial:.0%}) are both low")


# -- where nothing but the outputs can be had ------------------------------------------------------


def token_missing(lab: Lab) -> Reasons | None:
    """After the fork the candidate goes on as the reference does one token later."""
    expected, found = _found(lab)
    at, hard = _places(lab), _hard(lab)
    skipped = 0
    for fork in hard:
        here, own = fork.divergence.position, at[fork.row]
        rest, goes_on = expected[own][here + 1 :], found[own][here:]
        skipped += common_prefix(rest, goes_on) >= min(3, len(goes_on), len(rest)) > 0
    if not hard or skipped * 2 <= len(hard):
        return None
    return (
        f"in {skipped} of {len(hard)} forks the candidate leaves out one token and goes on as the "
        "reference does: a token that was chosen and not handed on",
    )


def moved_positions(lab: Lab) -> Reasons | None:
    """Moved positions give the candidate's own tokens."""
    return positions.explain(lab, outcome(lab, "own"), positions.small_shifts)


def two_numbers_positions(lab: Lab) -> Reasons | None:
    """The paper's rule on the run itself: both low."""
    match = compare(*_found(lab))
    if match.exact / match.rows > 0.1 or match.partial > 0.25 or lab.model(None) is not None:
        return None  # where there is a model, positions can be tried out instead
    return (
        f"exact match {match.exact}/{match.rows} and partial match {match.partial:.0%}: "
        "wrong from the first tokens",
    )


def two_numbers_drift(lab: Lab) -> Reasons | None:
    """The paper's rule on the run itself: partial high, exact low."""
    match = compare(*_found(lab))
    if match.exact / match.rows > LOW or match.partial < HIGH or not _gaps_known(lab):
        return None
    return (
        f"exact match {match.exact}/{match.rows} with partial match {match.partial:.0%}: "
        "right at first, wrong later",
    )


def beyond_noise(lab: Lab) -> Reasons | None:
    """The gap is known, and nobody would call it rounding."""
    gaps = [fork.gap for fork in _hard(lab) if fork.gap is not None]
    if not gaps or not _gaps_known(lab):
        return None
    band = lab.noise(lab.dtype).band
    return (f"gaps at the forks reach {max(gaps):.3g}, the measured noise {band:.3g}",)


def _gaps_known(lab: Lab) -> bool:
    hard = _hard(lab)
    gaps = [fork.gap for fork in hard if fork.gap is not None]
    return len(gaps) * 2 >= len(hard) > 0 and max(gaps, default=0) > lab.max_gap


def always(lab: Lab) -> Reasons | None:
    """Nothing else spoke."""
    return (f"{_count(_hard(lab), lab)} differ and no control says why",)


BLIND: Reasons = ("controls that change K or hand in known drafts: the candidate takes neither",)
SCORES: Reasons = ("scores of the likeliest tokens at the fork (logits or logprobs)",)

RULES: tuple[Rule, ...] = (
    Rule(
        name="reference contradicts itself",
        cause=Cause.UNDECIDED,
        says="the reference, asked twice, differs beyond the noise",
        holds=reference_unstable,
        missing=("a reference that repeats itself: one request at a time, no other load",),
    ),
    Rule(
        name="candidate changes its mind",
        cause=Cause.UNDECIDED,
        says="the candidate, asked twice, differs beyond the noise",
        holds=candidate_unstable,
        missing=("a candidate that repeats itself: no other load, a fixed order of requests",),
    ),
    Rule(
        name="re-ordered",
        cause=Cause.BUG,
        kind=Kind.DELIVERY,
        says="the differing rows hold the reference's tokens in another order",
        holds=delivered_out_of_order,
    ),
    Rule(
        name="another row's answer",
        cause=Cause.BUG,
        kind=Kind.ROW_MIXUP,
        says="a row holds the beginning of another row's answer",
        holds=rows_exchanged,
    ),
    Rule(
        name="ends inside a block",
        cause=Cause.BUG,
        kind=Kind.ENDING,
        says="rows agree until one side ends; with K = 0 they end alike",
        holds=ends_inside_a_block,
    ),
    Rule(
        name="other rules of ending",
        cause=Cause.HARNESS,
        says="rows agree until one side ends, with K = 0 as well",
        holds=other_rules_of_ending,
    ),
    Rule(
        name="argmax ties",
        cause=Cause.BUG,
        kind=Kind.TIES,
        says="at every fork the logits are equal to the last bit and the higher id was taken",
        holds=ties,
    ),
    Rule(
        name="processor per block",
        cause=Cause.BUG,
        kind=Kind.PROCESSORS,
        says="it goes away with the processor, and with K = 0",
        holds=processors,
    ),
    Rule(
        name="beyond the window",
        cause=Cause.BUG,
        kind=Kind.WINDOW,
        says="nothing differs within the sliding window, and it takes no rejection",
        holds=window,
    ),
    Rule(
        name="eos in the prompt",
        cause=Cause.BUG,
        kind=Kind.PADDING_MASK,
        says="K = 0, B = 1 differs exactly where the prompt contains eos",
        holds=marked_prompts,
    ),
    Rule(
        name="plain, moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="K = 0, B = 1 differs and moved positions give its tokens",
        holds=plain_positions,
    ),
    Rule(
        name="plain, both numbers low",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="K = 0, B = 1 differs with exact and partial match both low",
        holds=plain_two_numbers,
    ),
    Rule(
        name="plain differs",
        cause=Cause.BUG,
        kind=Kind.UNKNOWN,
        says="K = 0, B = 1 differs: speculation is not to blame",
        holds=plain_differs,
    ),
    Rule(
        name="any neighbour",
        cause=Cause.BUG,
        kind=Kind.ROW_MIXUP,
        says="K = 0 differs in a batch, with a neighbour that is no longer than the row",
        holds=any_neighbour,
    ),
    Rule(
        name="longer neighbour, moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="K = 0 differs beside a longer neighbour only, and moved positions give the tokens",
        holds=longer_neighbour_positions,
    ),
    Rule(
        name="longer neighbour",
        cause=Cause.BUG,
        kind=Kind.PADDING_MASK,
        says="K = 0 differs beside a longer neighbour only, and no positions explain it",
        holds=longer_neighbour,
    ),
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
    Rule(
        name="ragged batch, both numbers low",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="B = 1 agrees, K = 0 agrees; ragged acceptance breaks it from the start",
        holds=ragged_low,
    ),
    Rule(
        name="ragged batch",
        cause=Cause.BUG,
        kind=Kind.STALE_KV,
        says="B = 1 agrees, K = 0 agrees; ragged acceptance breaks it later",
        holds=ragged_only,
    ),
    Rule(
        name="a token is missing",
        cause=Cause.BUG,
        kind=Kind.CORRECTION,
        says="no controls: after the fork the candidate goes on one token ahead",
        holds=token_missing,
        missing=BLIND,
    ),
    Rule(
        name="moved positions",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="no controls: moved positions give the candidate's tokens",
        holds=moved_positions,
        missing=BLIND,
    ),
    Rule(
        name="both numbers low",
        cause=Cause.BUG,
        kind=Kind.POSITIONS,
        says="no controls: exact and partial match both very low (the paper's rule)",
        holds=two_numbers_positions,
        missing=BLIND,
    ),
    Rule(
        name="partial high, exact low",
        cause=Cause.BUG,
        kind=Kind.STALE_KV,
        says="no controls: partial match high, exact low, gaps beyond dispute (the paper's rule)",
        holds=two_numbers_drift,
        missing=BLIND,
    ),
    Rule(
        name="beyond the noise",
        cause=Cause.BUG,
        kind=Kind.UNKNOWN,
        says="no controls, but gaps that nobody calls rounding",
        holds=beyond_noise,
        missing=BLIND,
    ),
    Rule(
        name="unexplained",
        cause=Cause.UNDECIDED,
        says="rows differ and no evidence decides",
        holds=always,
        missing=(*SCORES, *BLIND),
    ),
)
