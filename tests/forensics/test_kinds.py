"""The table of kinds and its judge, on facts that are written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.forensics.facts import WORDS, Fact, Facts
from draftproof.forensics.kinds import TABLE, Entry, as_markdown, facts_as_markdown, judge
from draftproof.forensics.verdicts import Cause, Kind

PAGE = Path(__file__).parents[2] / "docs" / "forensics.md"


def facts(hits: int = 5, **values: bool) -> Facts:
    seen = {name: Fact(value, hits if value else 0, hits) for name, value in values.items()}
    return Facts(**seen)


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry.kind.value}: {entry.name}")
def test_what_an_entry_expects_gets_its_name_and_nothing_else(entry: Entry) -> None:
    found = judge(facts(**entry.expected), certain=True)
    alike = [one.kind for one in TABLE if one.expected == entry.expected]
    if alike == [entry.kind]:
        assert found.kind is entry.kind, found
    else:  # nothing separates them, so neither is named
        assert (found.kind, set(found.candidates)) == (Kind.UNKNOWN, set(alike))


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry.kind.value}: {entry.name}")
def test_any_known_fact_refutes(entry: Entry) -> None:
    for name, want in entry.expected.items():
        assert entry.refuted_by(facts(**{**entry.expected, name: not want})) == [name]


def test_an_entry_speaks_of_facts_that_there_are() -> None:
    assert {name for entry in TABLE for name in entry.expected} <= set(WORDS)


def test_what_shows_without_drafts_is_no_fault_of_a_verifier() -> None:
    drafts = {"first_draft_goes_out": True, "later_draft_goes_out": True, "own_best": False}
    assert judge(facts(**drafts), certain=True).kind is Kind.CORRECTION
    assert judge(facts(**drafts, wrong_without_drafts=True), certain=True).kind is Kind.UNKNOWN
    assert judge(facts(**drafts, wrong_at_prefill=True), certain=True).kind is Kind.UNKNOWN


def test_several_kinds_are_candidates_and_what_would_separate_them_is_missing() -> None:
    known = facts(wrong_alone=False, beside_longer=True, beside_shorter=False, beside_equal=False)
    found = judge(known, certain=True)
    assert (found.cause, found.kind) == (Cause.BUG, Kind.UNKNOWN)
    assert Kind.PADDING_MASK in found.candidates
    assert any("target in this process" in one for one in found.missing)


def test_nothing_known_is_undecided_unless_the_difference_is_certain() -> None:
    assert judge(Facts(), certain=False).cause is Cause.UNDECIDED
    assert judge(Facts(), certain=True).kind is Kind.UNKNOWN


def test_one_observation_names_nothing() -> None:
    few = Facts(tokens_reordered=Fact(True, 1, 1))
    assert judge(few, certain=True).kind is Kind.UNKNOWN
    assert judge(facts(3, tokens_reordered=True), certain=True).kind is Kind.DELIVERY


def test_the_page_holds_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert as_markdown() in text
    assert facts_as_markdown() in text
