"""What shows without speculation, or with a feature of the model or the request only."""

from __future__ import annotations

from draftproof.forensics import positions
from draftproof.forensics.compare import compare
from draftproof.forensics.controls import outcome, window_of
from draftproof.forensics.lab import Lab
from draftproof.forensics.rules.base import LOW, Reasons, Rule, count, hard_forks
from draftproof.forensics.subjects.base import Ability
from draftproof.forensics.verdicts import Cause, Kind


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


def processors(lab: Lab) -> Reasons | None:
    """The difference goes away with the processor."""
    if not outcome(lab, "no_minimum").clean:
        return None
    told, plain = "without min_new_tokens nothing differs", outcome(lab, "plain")
    if not plain.ran or plain.stand_in:
        return (told,)
    if not plain.clean:
        return None
    return told, "without speculation (K = 0) min_new_tokens is applied correctly"


def window(lab: Lab) -> Reasons | None:
    """Nothing differs until something must be forgotten."""
    size = window_of(lab)
    if size is None or not outcome(lab, "near_start").clean:
        return None
    if any(fork.context < size for fork in hard_forks(lab)):
        return None
    full = lab.candidate.k or 0
    if Ability.SCRIPT in lab.candidate.abilities and outcome(lab, f"right_{full}").clean:
        return None  # it takes a rejection, which a window does not
    return (
        f"no row differs before {size} tokens, the model's sliding window",
        "short prompts with short outputs, inside the window, agree",
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
    return told and (f"plain decoding at B = 1 differs on {count(plain.hard, lab)}", *told)


def plain_two_numbers(lab: Lab) -> Reasons | None:
    """The paper's rule on plain decoding: exact low and partial low."""
    plain = outcome(lab, "plain")
    if not plain.broken or plain.run is None:
        return None
    match = compare(lab.clean_expected.ids, plain.run.ids)
    if match.exact / match.rows > LOW or match.partial > LOW:
        return None
    return (
        f"plain decoding at B = 1 differs on {count(plain.hard, lab)}",
        f"exact match and partial match are both low ({match.partial:.0%}): wrong from the start",
    )


def plain_differs(lab: Lab) -> Reasons | None:
    """Whatever it is, it needs neither speculation nor a batch."""
    plain = outcome(lab, "plain")
    if not plain.broken:
        return None
    return (f"plain decoding at B = 1 differs on {count(plain.hard, lab)} beyond the noise",)


PLAIN: tuple[Rule, ...] = (
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
)
