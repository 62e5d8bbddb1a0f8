"""Injected faults: the mistakes people make, one each, small and named.

A fault is put around the engine's own parts (executor, model, drafter, verifier, scheduler) or on
the way of the answers; the engine itself holds no fault code. Each says which kind the forensics
must recognise it as; `selftest` proves that they do.
"""

from __future__ import annotations

from draftproof.baselines import BSP, DSD
from draftproof.faultlab.faults import kv_cache, stopping, verification
from draftproof.faultlab.faults.base import Condition, Fault
from draftproof.faultlab.faults.sampling import sampled
from draftproof.forensics.verdicts import Kind

__all__ = ["FAULTS", "Fault", "Condition", "by_name"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="position_plus_one",
        kind=Kind.POSITIONS,
        story="everything after the prompt sits one position too far",
        rig=kv_cache.shifting(kv_cache.plus_one),
    ),
    Fault(
        name="positions_from_padded_width",
        kind=Kind.POSITIONS,
        story="a short row counts its positions from the width of the batch",
        rig=kv_cache.shifting(kv_cache.padded_width),
    ),
    Fault(
        name="mask_shows_padding",
        kind=Kind.PADDING_MASK,
        story="a short row attends to the empty slots up to the longest row's end",
        rig=kv_cache.laid_out(kv_cache.PaddingVisible),
    ),
    Fault(
        name="mask_shows_stale_slots",
        kind=Kind.STALE_KV,
        story="rejected entries stay in the cache and the mask lets them in",
        rig=kv_cache.rolling_back(lambda rejected: rejected),
    ),
    Fault(
        name="rejected_zeroed",
        kind=Kind.STALE_KV,
        story="rejected entries are zeroed instead of masked and take softmax weight exp(0)",
        rig=kv_cache.rolling_back(lambda rejected: rejected, zero=True),
    ),
    Fault(
        name="rollback_too_many",
        kind=Kind.STALE_KV,
        story="a rejection takes back one entry too many: a good one is overwritten",
        rig=kv_cache.rolling_back(lambda rejected: -1),
    ),
    Fault(
        name="rollback_too_few",
        kind=Kind.STALE_KV,
        story="a rejection leaves one rejected entry in the cache",
        rig=kv_cache.rolling_back(lambda rejected: 1),
    ),
    Fault(
        name="draft_cache_off_by_one",
        kind=Kind.DRAFT_CACHE,
        story="the draft's cache keeps one rejected entry per rejection: right output, bad drafts",
        rig=kv_cache.draft_rolls_back_too_little,
    ),
    Fault(
        name="bonus_dropped",
        kind=Kind.CORRECTION,
        story="after a fully accepted block the bonus token is not handed on",
        deliver=stopping.bonus_lost,
    ),
    Fault(
        name="correction_from_draft",
        kind=Kind.CORRECTION,
        story="at the first mismatch the draft's token is emitted",
        rig=verification.verifying(after=verification.correction_from_draft),
    ),
    Fault(
        name="first_draft_unverified",
        kind=Kind.UNVERIFIED,
        story="the first draft token of a block is accepted as it is",
        rig=verification.verifying(after=verification.first_unverified),
    ),
    Fault(
        name="last_index_argmax",
        kind=Kind.TIES,
        story="equal logits go to the highest token id",
        condition=Condition.TIES,
        rig=verification.verifying(before=verification.last_of_ties),
    ),
    Fault(
        name="rows_exchanged",
        kind=Kind.ROW_MIXUP,
        story="results of neighbouring rows come back in each other's place",
        deliver=stopping.neighbours_exchanged,
    ),
    Fault(
        name="verdicts_swapped",
        kind=Kind.ROW_MIXUP,
        story="the verdicts of two rows change places",
        rig=verification.verifying(after=verification.first_two_rows_swapped),
    ),
    Fault(
        name="neighbours_length",
        kind=Kind.ROW_MIXUP,
        story="a row counts its positions from the length of the row beside it",
        rig=kv_cache.shifting(kv_cache.neighbours_length),
    ),
    Fault(
        name="eos_ignored_in_block",
        kind=Kind.ENDING,
        story="eos is looked for at the last token of a block only",
        condition=Condition.EOS,
        rig=stopping.eos_ignored,
    ),
    Fault(
        name="stop_string_overshoot",
        kind=Kind.ENDING,
        story="a row that hits a stop string keeps the rest of its block",
        condition=Condition.STOP,
        rig=stopping.stop_overshoots,
    ),
    Fault(
        name="length_overshoot",
        kind=Kind.ENDING,
        story="max_new_tokens is checked after a block is committed",
        rig=stopping.length_overshoots,
    ),
    Fault(
        name="pad_is_eos",
        kind=Kind.PADDING_MASK,
        story="the mask is inferred from token == pad, and pad is eos",
        condition=Condition.MARKED,
        rig=kv_cache.pad_is_eos,
    ),
    Fault(
        name="stream_reordered",
        kind=Kind.DELIVERY,
        story="the tokens of a block are streamed in the wrong order",
        deliver=stopping.blocks_reversed,
    ),
    Fault(
        name="speculation_off",
        kind=Kind.NOT_SPECULATING,
        story="nothing is drafted, and nobody is told",
        rig=verification.speculation_off,
    ),
    Fault(
        name="minimum_by_block",
        kind=Kind.PROCESSORS,
        story="min_new_tokens forbids eos in a whole block that begins too early",
        condition=Condition.MINIMUM,
        rig=verification.verifying(before=verification.minimum_by_block),
    ),
    Fault(
        name="window_forgotten_in_block",
        kind=Kind.WINDOW,
        story="a scored block is masked as if the layer had no sliding window",
        condition=Condition.WINDOW,
        rig=kv_cache.laid_out(kv_cache.WindowForgotten),
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
