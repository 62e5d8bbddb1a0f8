"""Intervals, survival, ends, noise: the numbers under the verdicts."""

from __future__ import annotations

import pytest
import torch

from draftproof.forensics.compare import grouped, overshoot, survival, wilson
from draftproof.forensics.noise import Sample, changes, decays, grid_of, measure, step_of
from draftproof.forensics.subjects.base import Run, Top
from draftproof.forensics.subjects.watching import tops_of

from .canned import answer


def test_wilson_interval_of_known_cases() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(10, 10)
    assert (round(low, 3), high) == (0.722, 1.0)  # not 1.0: ten rows prove little
    low, high = wilson(81, 263)  # Newcombe 1998, table I, method 3
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_survival_falls_at_each_fork_and_never_rises() -> None:
    curve = survival([[1, 2, 3, 4], [5, 6]], [[1, 2, 9, 4], [5, 6]])
    assert curve == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_overshoot_is_about_ends_only() -> None:
    assert overshoot([1, 2], [1, 2, 3]) == 1
    assert overshoot([1, 2, 3], [1]) == -2
    assert overshoot([1, 2], [1, 3, 4]) is None


def test_groups_keep_their_rows_together() -> None:
    groups = grouped(["a", "b", "a"], [[1], [2], [3]], [[1], [9], [3]])
    assert [(g.name, g.comparison.exact, g.comparison.rows) for g in groups] == [
        ("a", 2, 2),
        ("b", 0, 1),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("magnitude", [0.3, 1.0, 17.0, 31.9])
def test_a_step_is_the_distance_of_neighbouring_numbers(dtype: str, magnitude: float) -> None:
    torch_dtype = getattr(torch, dtype)
    value = torch.tensor(magnitude, dtype=torch_dtype)
    beyond = torch.nextafter(value, torch.tensor(torch.inf, dtype=torch_dtype))
    assert step_of(dtype, float(value)) == float(beyond.double() - value.double())


def test_bfloat16_near_16_has_steps_of_an_eighth() -> None:
    assert step_of("bfloat16", 20.0) == 0.125
    assert step_of(None, 20.0) is None


def test_noise_is_the_largest_change_of_a_gap_before_the_runs_part() -> None:
    one, other = answer([1, 2, 3], gap=5.0), answer([1, 2, 4], gap=5.25)
    found = changes(Run(answers=(one,)), Run(answers=(other,)))
    # the third token differs: its first choice is not among the other's, so it says nothing
    assert found == [0.25, 0.25]
    assert measure([Sample(source="batched", values=found, alone=False)]).band == 0.25
    assert measure([Sample(source="batched", values=[], alone=False)]).samples == 0


def test_a_batch_that_moves_gaps_far_beyond_rows_alone_is_no_witness() -> None:
    alone = Sample(source="blocks", values=[0.0, 0.125], alone=True)
    quiet = measure([alone, Sample(source="batch 8", values=[0.25, 0.5], alone=False)])
    assert (quiet.band, quiet.doubted) == (0.5, "")
    loud = measure([alone, Sample(source="batch 8", values=[0.25, 1.5], alone=False)])
    assert loud.band == 0.5
    assert loud.doubted.startswith("batch 8 moves a gap by 1.5")


def test_a_grid_shows_in_log_probabilities_of_rounded_logits() -> None:
    logits = torch.randn(400, 50, generator=torch.Generator().manual_seed(3)).double() * 4 + 12
    for dtype, rounded in ((torch.bfloat16, True), (torch.float32, False)):
        rows = logits.to(dtype).float().log_softmax(-1)
        best = rows.sort(-1, descending=True).values
        found = grid_of((best[:, 0] - best[:, 1]).tolist())
        # tops near 20: steps of 1/8, and of 1/16 below 16
        assert found in (1 / 8, 1 / 16) if rounded else found is None
    assert grid_of([0.125] * 10) is None  # too few to say


def test_a_gap_to_an_unlisted_token_is_a_lower_bound() -> None:
    top = Top(ids=(4, 7), values=(9.0, 8.5))
    assert top.gap(4, 7) == (0.5, True)
    assert top.gap(4, 55) == (0.5, False)


def test_ties_are_listed_by_id() -> None:
    assert tops_of(torch.tensor([[1.0, 3.0, 3.0, 2.0, 0.0]]))[0].ids == (1, 2, 3, 0)


def test_decay_needs_a_clear_fall() -> None:
    assert decays([0.9, 0.8, 0.3, 0.2])
    assert not decays([0.5, 0.6, 0.5, 0.55])
    assert not decays([0.9, 0.1])
