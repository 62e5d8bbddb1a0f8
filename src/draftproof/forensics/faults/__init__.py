"""Injected faults: the mistakes people make, one each, small and named.

A fault is put around the engine's own parts (executor, model, drafter, verifier, scheduler) or on
the way of the answers; the engine itself holds no fault code. Each says which kind the forensics
must recognise it as; `selftest` proves that they do.
"""

from __future__ import annotations

from draftproof.baselines import BSP, DSD
from draftproof.forensics.faults import endings, judging, memory
from draftproof.forensics.faults.base import Fault, Scene
from draftproof.forensics.faults.sampling import sampled
from draftproof.forensics.verdicts import Kind

__all__ = ["FAULTS", "Fault", "Scene", "by_name"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="position_plus_one",
        kind=Kind.POSITIONS,
        story="everything after the prompt sits one position too far",
        rig=memory.shifting(memory.plus_one),
    ),
    Fault(
        name="positions_from_padded_width",
        kind=Kind.POSITIONS,
        story="a short row counts its positions from the width of the batch",
        rig=memory.shifting(memory.padded_width),
    ),
    Fault(
        name="mask_shows_padding",
        kind=Kind.PADDING_MASK,
        story="a short row attends to the empty slots up to the longest row's end",
        rig=memory.laid_out(memory.PaddingVisible),
    ),
    Fault(
        name="mask_shows_stale_slots",
        kind=Kind.STALE_KV,
        story="rejected entries stay in the cache and the mask lets them in",
        rig=memory.rolling_back(lambda rejected: rejected),
    ),
    Fault(
        name="rejected_zeroed",
        kind=Kind.STALE_KV,
        story="rejected entries are zeroed instead of masked and take softmax weight exp(0)",
        rig=memory.rolling_back(lambda rejected: rejected, zero=True),
    ),
    Fault(
        name="rollback_too_many",
        kind=Kind.STALE_KV,
        story="a rejection takes back one entry too many: a good one is overwritten",
        rig=memory.rolling_back(lambda rejected: -1),
    ),
    Fault(
        name="rollback_too_few",
        kind=Kind.STALE_KV,
        story="a rejection leaves one rejected entry in the cache",
        rig=memory.rolling_back(lambda rejected: 1),
    ),
    Fault(
        name="draft_cache_off_by_one",
        kind=Kind.DRAFT_CACHE,
        story="the draft's cache keeps one rejected entry per rejection: right output, bad drafts",
        rig=memory.draft_rolls_back_too_little,
    ),
    Fault(
        name="bonus_dropped",
        kind=Kind.CORRECTION,
        story="after a fully accepted block the bonus token is not handed on",
        deliver=endings.bonus_lost,
    ),
    Fault(
        name="correction_from_draft",
        kind=Kind.CORRECTION,
        story="at the first mismatch the draft's token is emitted",
        rig=judging.judging(after=judging.correction_from_draft),
    ),
    Fault(
        name="first_draft_unverified",
        kind=Kind.UNVERIFIED,
        story="the first draft token of a block is accepted as it is",
        rig=judging.judging(after=judging.first_unverified),
    ),
    Fault(
        name="last_index_argmax",
        kind=Kind.TIES,
        story="equal logits go to the highest token id",
        scene=Scene.TIES,
        rig=judging.judging(before=judging.last_of_ties),
    ),
    Fault(
        name="rows_exchanged",
        kind=Kind.ROW_MIXUP,
        story="results of neighbouring rows come back in each other's place",
        deliver=endings.neighbours_exchanged,
    ),
    Fault(
        name="verdicts_swapped",
        kind=Kind.ROW_MIXUP,
        story="the verdicts of two rows change places",
        rig=judging.judging(after=judging.first_two_rows_swapped),
    ),
    Fault(
        name="neighbours_length",
        kind=Kind.ROW_MIXUP,
        story="a row counts its positions from the length of the row beside it",
        rig=memory.shifting(memory.neighbours_length),
    ),
    Fault(
        name="eos_ignored_in_block",
        kind=Kind.ENDING,
        story="eos is looked for at the last token of a block only",
        scene=Scene.EOS,
        rig=endings.eos_ignored,
    ),
    Fault(
        name="stop_string_overshoot",
        kind=Kind.ENDING,
        story="a row that hits a stop string keeps the rest of its block",
        scene=Scene.STOP,
        rig=endings.stop_overshoots,
    ),
    Fault(
        name="length_overshoot",
        kind=Kind.ENDING,
        story="max_new_tokens is checked after a block is committed",
        rig=endings.length_overshoots,
    ),
    Fault(
        name="pad_is_eos",
        kind=Kind.PADDING_MASK,
        story="the mask is inferred from token == pad, and pad is eos",
        scene=Scene.MARKED,
        rig=memory.pad_is_eos,
    ),
    Fault(
        name="stream_reordered",
        kind=Kind.DELIVERY,
        story="the tokens of a block are streamed in the wrong order",
        deliver=endings.blocks_reversed,
    ),
    Fault(
        name="speculation_off",
        kind=Kind.NOT_SPECULATING,
        story="nothing is drafted, and nobody is told",
        rig=judging.speculation_off,
    ),
    Fault(
        name="minimum_by_block",
        kind=Kind.PROCESSORS,
        story="min_new_tokens forbids eos in a whole block that begins too early",
        scene=Scene.MINIMUM,
        rig=judging.judging(before=judging.minimum_by_block),
    ),
    Fault(
        name="window_forgotten_in_block",
        kind=Kind.WINDOW,
        story="a scored block is masked as if the layer had no sliding window",
        scene=Scene.WINDOW,
        rig=memory.laid_out(memory.WindowForgotten),
    ),
    *sampled(),
    Fault(
        name="bsp",
        kind=Kind.POSITIONS,
        story="the published BSP: rejected entries become holes that positions count",
        method=BSP(),
    ),
    Fault(
        name="dsd",
        kind=Kind.CORRECTION,
        story="the published DSD: the rejected draft token is emitted, the bonus dropped",
        method=DSD(),
    ),
)


def by_name(name: str) -> Fault:
    """Raises KeyError, listing what there is."""
    known = {fault.name: fault for fault in FAULTS}
    if name not in known:
        raise KeyError(f"no fault {name!r}; there are {', '.join(sorted(known))}")
    return known[name]
