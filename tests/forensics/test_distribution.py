"""The chi-square test of sampled rows, on counts that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draftproof.faultlab.faults import FAULTS, Condition
from draftproof.faultlab.scenarios import DRAWS, VOCABULARY, Scenario, sampling_scenario
from draftproof.forensics.diagnose import diagnose
from draftproof.forensics.distribution import LENGTH, chi_square, joint, judge
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import Answer, Run
from draftproof.forensics.verdicts import Cause, Kind

from .canned import Canned


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return sampling_scenario()


def draws(probabilities: torch.Tensor) -> Run:
    """DRAWS draws from a joint distribution, [V ** LENGTH]."""
    generator = torch.Generator().manual_seed(0)
    places = torch.multinomial(probabilities, DRAWS, replacement=True, generator=generator)
    answers = []
    for place in places.tolist():
        digits = [place // VOCABULARY**n % VOCABULARY for n in reversed(range(LENGTH))]
        answers.append(Answer(ids=tuple(digits)))
    return Run(answers=tuple(answers))


def test_chi_square_of_a_known_table() -> None:
    observed, expected = torch.tensor([44.0, 56.0]), torch.tensor([50.0, 50.0])
    statistic, freedom, p = chi_square(observed, expected)
    assert (round(statistic, 2), freedom, round(p, 4)) == (1.44, 1, 0.2301)  # scipy.stats.chisquare


def test_rare_outcomes_count_as_one() -> None:
    expected = torch.tensor([90.0, 4.0, 3.0, 3.0])
    assert chi_square(expected, expected) == (0.0, 1, 1.0)


def test_the_joint_distribution_sums_to_one_and_is_sharper_when_colder(scenario: Scenario) -> None:
    prompt = scenario.inquiry.tasks[0].prompt
    warm, cold = joint(scenario.target, prompt, 1.0), joint(scenario.target, prompt, 0.3)
    assert float(warm.sum()) == pytest.approx(1.0)
    assert len(warm) == VOCABULARY**LENGTH
    assert float(cold.max()) > float(warm.max())


def test_right_draws_pass_and_draws_at_another_temperature_do_not(scenario: Scenario) -> None:
    prompt = scenario.inquiry.tasks[0].prompt
    right, wrong = (draws(joint(scenario.target, prompt, t)) for t in (0.6, 0.7))
    assert judge(right, scenario.inquiry, scenario.target).cause is Cause.EXACT
    found = judge(wrong, scenario.inquiry, scenario.target)  # negative control
    assert (found.cause, found.kind) == (Cause.BUG, Kind.SAMPLING)


def test_without_a_local_target_draws_cannot_be_judged(scenario: Scenario) -> None:
    side = Canned(respond=lambda setup: [])
    asked = replace(scenario.inquiry, tasks=())
    found = diagnose(Lab(reference=side, candidate=side, inquiry=asked)).finding
    assert found.cause is Cause.UNDECIDED
    assert found.missing


SAMPLED = [fault for fault in FAULTS if fault.condition is Condition.SAMPLING]


@pytest.mark.skipif(not SAMPLED, reason="this build does not sample")
def test_sampled_verification_keeps_the_distribution(scenario: Scenario) -> None:
    lab = Lab(
        reference=scenario.reference(), candidate=scenario.candidate(), inquiry=scenario.inquiry
    )
    assert diagnose(lab).finding.cause is Cause.EXACT
    assert 0.2 < (lab.found.counters.acceptance or 0) < 0.9
