"""The controls: runs that differ from the question in one thing, so that a cause shows.

name            what it changes                                what it tells
again           the reference, asked twice                     can the reference be trusted
again_candidate the candidate, asked twice                     does it change its mind
reference_batched   the reference in a batch, K = 0            what rounding does to a batch
reference_rescored  its own tokens scored in another shape     what rounding does to a shape
plain           K = 0, B = 1                                   is it speculation at all
plain_batched   K = 0                                          is it the batch alone
single          B = 1                                          is it the other rows
serial          a block as single steps                        is it the shape of a block
right_0 .. K    drafts known, wrong at offset j                where in a block, and when
batch_n, k_n    sweeps                                         how the rate moves
permuted        the batch in reverse order                     does a row depend on its place
near_start      prompts and outputs inside the sliding window  is it the window
no_minimum      without min_new_tokens                         is it the processors
unmarked        prompts without the eos id                     is pad taken for eos
midway          a row's own text so far as a new prompt        what earlier rounds leave behind
beside_...      one step after a prompt beside another row     whose length matters
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftproof.forensics import midway, pairs
from draftproof.forensics.forks import Fork, Outcome, cannot
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Run,
    Script,
    Setup,
)

SWEEP_BATCH = (2, 4, 8)
SWEEP_K = (1, 2, 3)


def outcome(lab: Lab, name: str) -> Outcome:
    """A control's outcome; it runs the first time somebody asks."""
    if not lab.controls:
        return cannot(name, "controls are switched off")
    if name not in lab.outcomes:
        lab.outcomes[name] = _run(lab, name)
    return lab.outcomes[name]


def purpose(name: str) -> str:
    """What a control changes, in a line of a report."""
    family, _, number = name.partition("_")
    if family in FAMILIES and number.isdigit():
        return f"{FAMILY_WORDS[family]} {number}"
    return (CONTROLS[name].__doc__ or WORDS.get(name, "")).strip().split("\n")[0].rstrip(".")


def _run(lab: Lab, name: str) -> Outcome:
    family, _, number = name.partition("_")
    if family in FAMILIES and number.isdigit():
        return FAMILIES[family](lab, int(number))
    return CONTROLS[name](lab)


def names(lab: Lab) -> list[str]:
    """Every control that makes sense for these subjects, cheap ones first."""
    k, rows = lab.candidate.k or 0, len(lab.inquiry.tasks)
    return [
        *CONTROLS,
        *(f"right_{right}" for right in range(k + 1)),
        *(f"k_{n}" for n in SWEEP_K if n != k),
        *(f"batch_{n}" for n in SWEEP_BATCH if n <= rows and n != lab.candidate.batch),
    ]


# -- one run each ----------------------------------------------------------------------------------


def again(lab: Lab) -> Outcome:
    """The reference, asked a second time as at first."""
    return _repeat("again", lab, lab.reference.run(lab.inquiry), lab.expected)


def again_candidate(lab: Lab) -> Outcome:
    """The candidate, asked a second time as at first."""
    return _repeat("again_candidate", lab, lab.candidate.run(lab.inquiry), lab.found)


def _repeat(name: str, lab: Lab, second: Run, first: Run) -> Outcome:
    return Outcome(
        name=name,
        rows=len(second.answers),
        errors=sum(answer.error is not None for answer in second.answers),
        forks=lab.forks(first, second, lab.dtype),
        run=second,
    )


def reference_batched(lab: Lab) -> Outcome:
    """The reference itself in a batch, K = 0: what a batch alone does to it."""
    run = lab.batched(None)
    if run is None:
        return cannot("reference_batched", "the reference cannot be asked for another batch")
    return _repeat("reference_batched", lab, run, lab.expected)


def reference_rescored(lab: Lab) -> Outcome:
    """The reference's own tokens, scored in another shape: no drafter, no neighbour."""
    run = lab.rescored(None)
    if run is None:
        return cannot("reference_rescored", "the reference scores no tokens handed to it")
    chosen = tuple(
        replace(answer, ids=tuple(top.ids[0] for top in answer.tops)) for answer in run.answers
    )
    return _repeat("reference_rescored", lab, replace(run, answers=chosen), lab.expected)


def plain(lab: Lab) -> Outcome:
    """K = 0, B = 1."""
    return lab.of_candidate("plain", Setup(batch=1, k=0), Ability.K)


def plain_batched(lab: Lab) -> Outcome:
    """K = 0 at the candidate's batch."""
    return lab.of_candidate("plain_batched", Setup(batch=lab.candidate.batch, k=0), Ability.K)


def single(lab: Lab) -> Outcome:
    """One row at a time."""
    return lab.of_candidate("single", Setup(batch=1), Ability.BATCH)


def serial(lab: Lab) -> Outcome:
    """Blocks scored as single steps."""
    return lab.of_candidate("serial", Setup(serial=True), Ability.SERIAL)


def own(lab: Lab) -> Outcome:
    """As asked, in float32 where both sides can: rounding goes, logic stays."""
    return lab.against_reference("own", lab.candidate, OWN)


def rerun(lab: Lab) -> Outcome | None:
    """The rerun in clean arithmetic; None where it cannot be had, or failed and shows nothing."""
    if lab.clean is None:
        return None
    found = outcome(lab, "own")
    return None if found.errors and not found.hard else found


def hard_forks(lab: Lab) -> tuple[Fork, ...]:
    """Forks of the clean rerun that rounding does not explain; else those of the run as asked.

    A mistake that moves scores need not fork in float32: then the run as asked says where to look.
    """
    clean = rerun(lab)
    if clean is not None and clean.hard:
        return clean.hard
    forks = [f for f in lab.forks(lab.expected, lab.found, lab.dtype) if not f.end]
    hard = [fork for fork in forks if fork.hard]
    return tuple(hard or forks)


def permuted(lab: Lab) -> Outcome:
    """The same rows in reverse order."""
    asked = replace(lab.inquiry, tasks=lab.inquiry.tasks[::-1])
    return lab.of_candidate("permuted", OWN, Ability.BATCH, inquiry=asked)


def no_minimum(lab: Lab) -> Outcome:
    """Without min_new_tokens, the processor that a block must apply token by token."""
    if not lab.inquiry.min_new_tokens:
        return cannot("no_minimum", "no processor was asked for")
    if Ability.PROMPTS not in lab.candidate.abilities:
        return cannot("no_minimum", "the candidate cannot be asked anything else")
    return lab.against_reference(
        "no_minimum", lab.candidate, OWN, replace(lab.inquiry, min_new_tokens=0)
    )


def window_of(lab: Lab) -> int | None:
    """Smallest sliding window of the local model, None without one."""
    model = lab.model(None)
    if model is None:
        return None
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    return int(window) if window and (not kinds or "sliding_attention" in kinds) else None


def near_start(lab: Lab) -> Outcome:
    """Short prompts and short outputs, so that no layer has anything to forget."""
    window = window_of(lab)
    if window is None or window < 2:
        return cannot("near_start", "the model has no sliding window")
    if Ability.PROMPTS not in lab.candidate.abilities:
        return cannot("near_start", "the candidate cannot be asked anything else")
    keep = max(1, window // 2)
    tasks = tuple(replace(task, prompt=task.prompt[:keep]) for task in lab.inquiry.tasks)
    asked = replace(lab.inquiry, tasks=tasks, max_new_tokens=window - keep)
    return lab.against_reference("near_start", lab.candidate, OWN, asked)


def unmarked(lab: Lab) -> Outcome:
    """Prompts in which every eos id is replaced by the token before it."""
    ends = set(lab.inquiry.eos_token_id or ())
    if not any(ends & set(task.prompt) for task in lab.inquiry.tasks):
        return cannot("unmarked", "no prompt holds an eos id")
    if Ability.PROMPTS not in lab.candidate.abilities:
        return cannot("unmarked", "the candidate cannot be asked anything else")
    tasks = tuple(
        replace(task, prompt=_without(task.prompt, ends), text=None) for task in lab.inquiry.tasks
    )
    asked = replace(lab.inquiry, tasks=tasks)
    return lab.against_reference("unmarked", lab.candidate, OWN, asked)


def _without(prompt: Sequence[int], ends: set[int]) -> tuple[int, ...]:
    """An eos id becomes the nearest other token before it, or after it."""
    kept: list[int] = []
    following = next((i for i in prompt if i not in ends), 0)
    for token in prompt:
        kept.append(token if token not in ends else kept[-1] if kept else following)
    return tuple(kept)


def from_the_middle(lab: Lab) -> Outcome:
    """A row's own text up to shortly before its fork as a new prompt, B = 1."""
    starts = midway.around(lab, hard_forks(lab))
    if not midway.can_start(lab.candidate, lab) or not starts:
        return cannot("midway", "the candidate takes no new prompts, or none are known as ids")
    return midway.ask(lab, "midway", starts, lab.block + 1)


def beside_in_a_step(name: str) -> Callable[[Lab], Outcome]:
    """One step of a row beside one made-up neighbour; see `pairs`."""
    return lambda lab: pairs.run(lab, name, hard_forks(lab))


# -- families --------------------------------------------------------------------------------------


def right(lab: Lab, count: int) -> Outcome:
    """Drafts made of the reference's own output, wrong at offset `count` of each block."""
    script = Script(continuations=tuple(lab.clean_expected.ids), right=count)
    return lab.of_candidate(f"right_{count}", Setup(batch=1, script=script), Ability.SCRIPT)


def drafts_of(lab: Lab, count: int) -> Outcome:
    """Another K."""
    return lab.of_candidate(f"k_{count}", Setup(k=count), Ability.K)


def batch_of(lab: Lab, count: int) -> Outcome:
    """Another batch size."""
    return lab.of_candidate(f"batch_{count}", Setup(batch=count), Ability.BATCH)


CONTROLS: dict[str, Callable[[Lab], Outcome]] = {
    "again": again,
    "again_candidate": again_candidate,
    "reference_batched": reference_batched,
    "reference_rescored": reference_rescored,
    "own": own,
    "plain": plain,
    "plain_batched": plain_batched,
    "single": single,
    "serial": serial,
    "permuted": permuted,
    "near_start": near_start,
    "no_minimum": no_minimum,
    "unmarked": unmarked,
    "midway": from_the_middle,
    **{name: beside_in_a_step(name) for name in pairs.NAMES},
}
WORDS = {
    "beside_shorter": "a row's first step after a prompt, beside a shorter row",
    "beside_same": "a row's first step after a prompt, beside a row of the same length",
    "beside_longer": "a row's first step after a prompt, beside longer rows",
}
FAMILY_WORDS = {
    "right": "known drafts at B = 1, right draft tokens per block:",
    "k": "K =",
    "batch": "B =",
}
FAMILIES: dict[str, Callable[[Lab, int], Outcome]] = {
    "right": right,
    "k": drafts_of,
    "batch": batch_of,
}
