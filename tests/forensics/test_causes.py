"""The verdicts, on answers that are written down."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.forensics.diagnose import diagnose
from draftproof.forensics.lab import Lab
from draftproof.forensics.subjects.base import OWN, Ability, Answer, Counters, Run, Setup
from draftproof.forensics.verdicts import Cause, Kind

from .canned import Canned, Respond, answer, inquiry

RIGHT = [[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15, 16, 17, 18]]
FORKED = [[1, 2, 3, 99, 50, 51, 52, 53], RIGHT[1]]
BOTH = frozenset({Ability.FLOAT32, Ability.TOPS})


def always(rows: Sequence[Sequence[int]], gap: float = 5.0) -> Respond:
    return lambda setup: [answer(ids, gap) for ids in rows]


def lab(reference: Canned, candidate: Canned, rows: int = 2) -> Lab:
    return Lab(reference=reference, candidate=candidate, inquiry=inquiry(rows))


def test_equal_rows_are_exact_and_unknown_speculation_is_said() -> None:
    side = Canned(respond=always(RIGHT), drafted=None)
    found = diagnose(lab(Canned(respond=always(RIGHT)), side)).finding
    assert found.cause is Cause.EXACT
    assert "speculating: unknown" in found.reasons
    assert found.missing == ("the candidate's speculation counters",)


def test_equal_rows_without_any_draft_are_not_exact() -> None:
    side = Canned(respond=always(RIGHT), drafted=0)
    found = diagnose(lab(Canned(respond=always(RIGHT)), side)).finding
    assert (found.cause, found.kind) == (Cause.BUG, Kind.NOT_SPECULATING)


def test_plain_against_plain_needs_no_drafts() -> None:
    side = Canned(respond=always(RIGHT), drafted=0, k=0)
    assert diagnose(lab(Canned(respond=always(RIGHT)), side)).finding.cause is Cause.EXACT


def test_a_near_tie_that_float32_decides_alike_is_numeric() -> None:
    def rounded(setup: Setup) -> list[Answer]:
        return [answer(ids, 0.0625) for ids in (RIGHT if setup.dtype else FORKED)]

    reference = Canned(respond=always(RIGHT, 0.0625), abilities=BOTH, dtype="bfloat16", k=0)
    candidate = Canned(respond=rounded, abilities=BOTH, dtype="bfloat16")
    diagnosis = diagnose(lab(reference, candidate))
    assert diagnosis.finding.cause is Cause.NUMERIC
    fork = diagnosis.forks[0]
    assert (fork.gap, fork.steps, fork.near) == (0.0625, 1.0, True)  # bfloat16 at 8 .. 16: 0.0625
    assert "gone in float32" in " ".join(diagnosis.rows[0].reasons)


def test_a_near_tie_that_stays_in_float32_is_no_rounding() -> None:
    reference = Canned(respond=always(RIGHT, 0.0625), abilities=BOTH, dtype="bfloat16", k=0)
    candidate = Canned(respond=always(FORKED, 0.0625), abilities=BOTH, dtype="bfloat16")
    assert diagnose(lab(reference, candidate)).finding.cause is not Cause.NUMERIC


def test_without_float32_a_near_tie_is_numeric_and_says_what_is_missing() -> None:
    tops = frozenset({Ability.TOPS})
    reference = Canned(respond=always(RIGHT, 0.0625), abilities=tops, dtype="bfloat16", k=0)
    candidate = Canned(respond=always(FORKED), abilities=tops, dtype="bfloat16")
    found = diagnose(lab(reference, candidate)).finding
    assert found.cause is Cause.NUMERIC
    assert found.missing == ("a float32 rerun of both sides",)


def test_a_gap_nobody_defends_is_a_bug_even_without_controls() -> None:
    reference, candidate = Canned(respond=always(RIGHT), k=0), Canned(respond=always(FORKED))
    found = diagnose(lab(reference, candidate)).finding
    assert found.cause is Cause.BUG
    assert found.missing


def test_a_gap_in_between_is_undecided_and_names_the_evidence() -> None:
    reference = Canned(respond=always(RIGHT, 0.9), k=0, dtype="bfloat16")
    found = diagnose(lab(reference, Canned(respond=always(FORKED)))).finding
    assert found.cause is Cause.UNDECIDED
    assert any("scores" in one for one in found.missing)


def test_without_scores_a_difference_is_undecided() -> None:
    bare = [Answer(ids=tuple(ids)) for ids in RIGHT]
    candidate = Canned(respond=always(FORKED))
    assert diagnose(lab(Canned(respond=lambda s: bare), candidate)).finding.cause is Cause.UNDECIDED


def test_a_reference_that_contradicts_itself_decides_nothing() -> None:
    calls: list[int] = []

    def fickle(setup: Setup) -> list[Answer]:
        calls.append(1)
        return [answer(ids) for ids in (RIGHT if len(calls) == 1 else FORKED)]

    other = Canned(respond=always([RIGHT[0], [11, 77, 70, 71, 72, 73, 74, 75]]))
    found = diagnose(lab(Canned(respond=fickle, k=0), other)).finding
    assert (found.cause, found.rule) == (
        Cause.UNDECIDED,
        "the reference does not repeat itself",
    )


def test_a_row_without_an_answer_is_undecided_and_the_others_are_judged() -> None:
    def half(setup: Setup) -> list[Answer]:
        return [answer(RIGHT[0]), Answer(error="timed out")]

    diagnosis = diagnose(lab(Canned(respond=always(RIGHT)), Canned(respond=half)))
    assert diagnosis.finding.cause is Cause.UNDECIDED
    assert diagnosis.rows[1].reasons == ("candidate: timed out",)
    assert 0 not in diagnosis.rows


def test_ends_that_differ_by_a_constant_are_the_harness() -> None:
    longer = [[*ids, 40] for ids in RIGHT]
    found = diagnose(
        lab(Canned(respond=always(RIGHT), k=0), Canned(respond=always(longer)))
    ).finding
    assert found.cause is Cause.HARNESS


def test_ends_that_overshoot_by_up_to_a_block_are_a_bug() -> None:
    longer = [[*RIGHT[0], 40], [*RIGHT[1], 40, 41, 42]]  # 1 and 3 tokens, K = 3
    found = diagnose(
        lab(Canned(respond=always(RIGHT), k=0), Canned(respond=always(longer)))
    ).finding
    assert (found.cause, found.kind) == (Cause.BUG, Kind.ENDING)


def test_a_token_that_the_candidate_itself_does_not_choose_is_never_rounding() -> None:
    """Its scores are right and its token is not: outputs alone do not say which kind it is."""
    said = [*answer(RIGHT[0], 0.0625).tops]
    unchosen = [Answer(ids=tuple(FORKED[0]), tops=tuple(said)), answer(RIGHT[1], 0.0625)]
    sides = Canned(respond=always(RIGHT, 0.0625), k=0), Canned(respond=lambda s: unchosen)
    found = diagnose(lab(*sides))
    assert found.finding.cause is not Cause.NUMERIC
    assert found.facts is not None
    assert found.facts.value("own_best") is False
    assert {Kind.CORRECTION, Kind.UNVERIFIED, Kind.ROW_MIXUP} >= set(found.finding.candidates)
    chosen = diagnose(lab(sides[0], Canned(respond=always(FORKED)))).facts
    assert chosen is not None
    assert chosen.value("own_best") is True


def test_two_low_numbers_alone_are_no_evidence_for_positions() -> None:
    rows = [list(range(row, row + 12)) for row in (100, 200, 300, 400)]
    early = [[ids[0], *range(500 + n, 511 + n)] for n, ids in enumerate(rows)]
    sides = Canned(respond=always(rows), k=0), Canned(respond=always(early))
    found = diagnose(lab(*sides, rows=4)).finding
    assert (found.cause, found.kind) == (Cause.BUG, Kind.UNKNOWN)


def test_tokens_in_another_order_are_recognised() -> None:
    mixed = [[2, 1, 4, 3, 6, 5, 8, 7], RIGHT[1]]
    found = diagnose(lab(Canned(respond=always(RIGHT)), Canned(respond=always(mixed)))).finding
    assert found.kind is Kind.DELIVERY


def test_switched_off_controls_are_never_run() -> None:
    reference, candidate = Canned(respond=always(RIGHT)), Canned(respond=always(FORKED))
    bare = Lab(reference=reference, candidate=candidate, inquiry=inquiry(2), controls=False)
    diagnose(bare)
    assert reference.asked == candidate.asked == [OWN]


def test_counters_say_unknown_rather_than_off() -> None:
    assert Counters().speculating is None
    assert Counters(drafted=0).speculating is False
    assert Counters(drafted=8, accepted=6).acceptance == 0.75


def test_runs_give_ids_in_order() -> None:
    assert Run(answers=(answer([1]), answer([2]))).ids == [(1,), (2,)]
