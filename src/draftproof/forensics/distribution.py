"""Is a sampled row drawn from the target's own distribution? Counted, and compared exactly.

The first three tokens of many draws from one prompt, on a model with a vocabulary so small that
every outcome's probability can be computed: chi-square against the exact joint distribution. The
first token comes from the prefill; the drafts' influence begins with the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftproof.forensics.subjects.base import Inquiry, Run
from draftproof.forensics.verdicts import Cause, Finding, Kind

LENGTH = 3  # tokens of a draw that are counted
LEAST = 5.0  # expected count below which outcomes are taken together (Cochran 1954)
ALARM = 1e-6  # probability of a correct sampler looking as bad: once in a million runs


@torch.no_grad()
def joint(model: Any, prompt: Sequence[int], temperature: float) -> Tensor:
    """Exact probability of the next LENGTH tokens, [V ** LENGTH] float64, last token fastest."""
    size, device = int(model.config.vocab_size), model.device
    prefixes = torch.tensor([list(prompt)], device=device)  # [V ** n, L + n]
    total = torch.ones(1, dtype=torch.float64)
    for _ in range(LENGTH):
        logits = model(input_ids=prefixes, use_cache=False).logits[:, -1]  # [V ** n, V]
        step = (logits.double().cpu() / temperature).softmax(-1)
        total = (total[:, None] * step).flatten()
        ids = torch.arange(size, device=device).repeat(len(prefixes))[:, None]
        prefixes = torch.cat([prefixes.repeat_interleave(size, 0), ids], dim=1)
    return total


def chi_square(observed: Tensor, expected: Tensor) -> tuple[float, int, float]:
    """Statistic, degrees of freedom and p-value of counts [N] against expected counts [N].

    Outcomes that are expected less than LEAST times count as one.
    """
    rare = expected < LEAST
    counts = torch.cat([observed[~rare], observed[rare].sum()[None]])
    hopes = torch.cat([expected[~rare], expected[rare].sum()[None]])
    keep = hopes > 0
    statistic = float(((counts[keep] - hopes[keep]) ** 2 / hopes[keep]).sum())
    freedom = max(1, int(keep.sum()) - 1)
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return statistic, freedom, float(torch.special.gammaincc(half[0], half[1]))


def judge(run: Run, inquiry: Inquiry, model: Any) -> Finding:
    """The verdict on many draws of one prompt."""
    assert inquiry.temperature is not None
    size = int(model.config.vocab_size)
    drawn = Counter(_index(answer.ids, size) for answer in run.answers if not answer.error)
    observed = torch.zeros(size**LENGTH, dtype=torch.float64)
    for place, count in drawn.items():
        observed[place] = count
    exact = joint(model, inquiry.tasks[0].prompt, inquiry.temperature)
    statistic, freedom, p = chi_square(observed, exact * observed.sum())
    reasons = (
        f"{int(observed.sum())} draws of {LENGTH} tokens: chi-square {statistic:.0f} at {freedom} "
        f"degrees of freedom, p = {p:.2g}",
    )
    if p < ALARM:
        return Finding(
            cause=Cause.BUG, kind=Kind.SAMPLING, rule="another distribution", reasons=reasons
        )
    return Finding(cause=Cause.EXACT, rule="the target's own distribution", reasons=reasons)


def _index(ids: Sequence[int], size: int) -> int:
    place = 0
    for token in ids[:LENGTH]:
        place = place * size + token
    return place
