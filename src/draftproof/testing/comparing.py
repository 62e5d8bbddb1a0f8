"""Prompts that are unlike each other, and a comparison of token ids that says where they part."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.testing.models import VOCAB_SIZE

CONTEXT = 6  # tokens shown on both sides of a difference


def random_prompts(
    lengths: Sequence[int], *, seed: int = 0, vocab_size: int = VOCAB_SIZE
) -> list[list[int]]:
    """One prompt per length, of independent uniform ids: no two rows resemble each other.

    Batches of similar prompts hide a row that reads its neighbour's memory.
    """
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]


def assert_same_tokens(
    found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]], label: str = ""
) -> None:
    """Raise AssertionError with the first difference of every row that differs."""
    rows = zip(found, expected, strict=True)
    complaints = [
        _difference(index, list(ours), list(theirs))
        for index, (ours, theirs) in enumerate(rows)
        if list(ours) != list(theirs)
    ]
    if complaints:
        title = f"{len(complaints)} of {len(expected)} rows differ"
        raise AssertionError("\n".join([f"{label}: {title}" if label else title, *complaints]))


def _difference(row: int, found: list[int], expected: list[int]) -> str:
    pairs = enumerate(zip(found, expected, strict=False))
    shorter = min(len(found), len(expected))
    place = next((index for index, (ours, theirs) in pairs if ours != theirs), shorter)
    return (
        f"row {row}, first at position {place}:\n"
        f"  expected {_around(expected, place)}  ({len(expected)} tokens)\n"
        f"  found    {_around(found, place)}  ({len(found)} tokens)"
    )


def _around(tokens: list[int], place: int) -> str:
    """`... 4 8 [15] 16 23 ...`, with [end] where there is no token."""
    before = tokens[max(0, place - CONTEXT) : place]
    after = tokens[place + 1 : place + 1 + CONTEXT]
    here = f"[{tokens[place]}]" if place < len(tokens) else "[end]"
    start = "... " if place > CONTEXT else ""
    end = " ..." if place + 1 + CONTEXT < len(tokens) else ""
    return start + " ".join([*map(str, before), here, *map(str, after)]) + end
