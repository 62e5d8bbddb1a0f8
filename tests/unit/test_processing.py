"""Stages against transformers' processors, bit for bit, and per row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftproof.batch import Request, Row
from draftproof.errors import InputError
from draftproof.processing import (
    BROKEN,
    OWN,
    PENALTIES,
    WARPERS,
    Positions,
    align,
    best,
    choose,
    run,
)
from draftproof.sampling import Coupling, Settings

VOCAB = 67
STAGES = (*PENALTIES, *OWN, *WARPERS)
BIAS = (((4,), 1.5), ((7, 9), -3.0), ((3, 3, 8), 2.0))
WORDS = ((5,), (11, 12), (1, 2, 3), (60,))


def make_row(tokens: list[int], prompt_len: int, slot: int = 0, **settings: Any) -> Row:
    request = Request(
        index=slot, prompt=tokens[:prompt_len], settings=Settings(**settings), stream=slot + 1
    )
    return Row(slot=slot, request=request, tokens=list(tokens))


def random_ids(count: int, seed: int, high: int = VOCAB) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, (count,), generator=generator).tolist()


def random_scores(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def at_end(*rows: Row) -> Positions:
    """One position per row: after its last token."""
    return Positions.of_block(rows, torch.empty(len(rows), 0, dtype=torch.int64), [0] * len(rows))


def theirs(processors: list[Any], tokens: list[int], scores: Tensor) -> Tensor:
    result: Tensor = LogitsProcessorList(processors)(torch.tensor([tokens]), scores[None].clone())
    return result[0]


SAMPLED = {"do_sample": True}
# settings, and the list that transformers builds for them
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "temperature": (
        SAMPLED | {"temperature": 0.7},
        lambda: [TemperatureLogitsWarper(0.7)],
    ),
    "top_k": (SAMPLED | {"top_k": 5}, lambda: [TopKLogitsWarper(5)]),
    "top_k beyond": (SAMPLED | {"top_k": 500}, lambda: [TopKLogitsWarper(500)]),
    "top_p": (SAMPLED | {"top_p": 0.8}, lambda: [TopPLogitsWarper(0.8)]),
    "top_p 0": (SAMPLED | {"top_p": 0.0}, lambda: [TopPLogitsWarper(0.0)]),
    "top_p wide": (SAMPLED | {"top_p": 0.9999}, lambda: [TopPLogitsWarper(0.9999)]),
    "min_p": (SAMPLED | {"min_p": 0.1}, lambda: [MinPLogitsWarper(0.1)]),
    "repetition": (
        {"repetition_penalty": 1.3},
        lambda: [RepetitionPenaltyLogitsProcessor(1.3)],
    ),
    "ngram": ({"no_repeat_ngram_size": 2}, lambda: [NoRepeatNGramLogitsProcessor(2)]),
    "unigram": ({"no_repeat_ngram_size": 1}, lambda: [NoRepeatNGramLogitsProcessor(1)]),
    "bias": ({"sequence_bias": BIAS}, lambda: [SequenceBiasLogitsProcessor(dict(BIAS))]),
    "bad words": (
        {"bad_words_ids": WORDS, "eos_token_id": (60,)},
        lambda: [NoBadWordsLogitsProcessor([list(word) for word in WORDS], 60)],
    ),
    "min_new_tokens": (
        {"min_new_tokens": 40, "eos_token_id": (3, 4)},
        lambda: [MinNewTokensLengthLogitsProcessor(4, 40, [3, 4])],
    ),
    "all": (
        SAMPLED
        | {
            "sequence_bias": BIAS,
            "repetition_penalty": 0.8,
            "no_repeat_ngram_size": 3,
            "bad_words_ids": WORDS,
            "min_new_tokens": 40,
            "eos_token_id": (3,),
            "temperature": 1.4,
            "top_k": 30,
            "top_p": 0.95,
            "min_p": 0.01,
        },
        lambda: [
            SequenceBiasLogitsProcessor(dict(BIAS)),
            RepetitionPenaltyLogitsProcessor(0.8),
            NoRepeatNGramLogitsProcessor(3),
            NoBadWordsLogitsProcessor([list(word) for word in WORDS], 3),
            MinNewTokensLengthLogitsProcessor(4, 40, 3),
            TemperatureLogitsWarper(1.4),
            TopKLogitsWarper(30),
            TopPLogitsWarper(0.95),
            MinPLogitsWarper(0.01),
        ],
    ),
}
# sequences that end so that n-grams repeat and biases and bad words apply
SEQUENCES = [
    random_ids(4, 1),
    [*random_ids(20, 2, high=6), 7],
    [1, 5, 3, 1, 2, 9, 3, 3],
    [11, 12, 11, 12, 30, 11],
    [4, 2, 4, 1, 2],
    random_ids(30, 3, high=9),
]


@pytest.mark.parametrize("name", CASES)
def test_scores_are_transformers_bit_for_bit(name: str) -> None:
    settings, processors = CASES[name]
    scores = random_scores(len(SEQUENCES))
    rows = [make_row(tokens, 4, slot, **settings) for slot, tokens in enumerate(SEQUENCES)]
    together = run(STAGES, scores, at_end(*rows))
    for index, row in enumerate(rows):
        expected = theirs(processors(), row.tokens, scores[index])
        assert torch.equal(together[index], expected), f"row {index}"
        assert torch.equal(run(STAGES, scores[index : index + 1], at_end(row))[0], expected)


def test_every_row_has_its_own_settings() -> None:
    """All cases in one batch, beside rows that want nothing."""
    scores = random_scores(2 * len(CASES), seed=3)
    rows = []
    for index, (settings, _) in enumerate(CASES.values()):
        rows.append(make_row(SEQUENCES[index % 6], 4, 2 * index, **settings))
        rows.append(make_row(SEQUENCES[index % 6], 4, 2 * index + 1))
    found = run(STAGES, scores, at_end(*rows))
    for index, (_, processors) in enumerate(CASES.values()):
        expected = theirs(processors(), rows[2 * index].tokens, scores[2 * index])
        assert torch.equal(found[2 * index], expected)
        assert torch.equal(found[2 * index + 1], scores[2 * index + 1])


def test_the_order_of_stages_matters_to_these_tests() -> None:
    """Were the warpers run the other way round, the case with all of them would notice."""
    settings, processors = CASES["all"]
    row, scores = make_row(SEQUENCES[1], 4, **settings), random_scores(1)
    expected = theirs(processors(), row.tokens, scores[0])
    wrong = run((*PENALTIES, *reversed(WARPERS)), scores, at_end(row))
    assert not torch.equal(wrong[0], expected)


@pytest.mark.parametrize("name", ["repetition", "ngram", "bias", "bad words", "all"])
def test_a_drafted_position_sees_the_drafts_before_it(name: str) -> None:
    settings, processors = CASES[name]
    row = make_row([1, 5, 3, 1], 2, **settings)
    other = make_row([9, 9], 1, 1)
    drafts = torch.tensor([[2, 3, 3], [4, -1, -1]])
    positions = Positions.of_block([row, other], drafts, [3, 1])
    scores = random_scores(6)
    found = run(PENALTIES, scores, positions)
    kept = [p for p in processors() if "Warper" not in type(p).__name__]
    for offset in range(4):
        # the processor was made for a prompt of 4 tokens, this one has 2: it wants eos still later
        prefix = [*row.tokens, *drafts[0, :offset].tolist()]
        assert torch.equal(found[offset], theirs(kept, prefix, scores[offset]))
    assert torch.equal(found[4:], scores[4:])


def test_prefixes_end_in_the_last_column() -> None:
    rows = [make_row([1, 2, 3], 2), make_row([4], 1, 1)]
    positions = Positions.of_block(rows, torch.tensor([[7, 8], [9, -1]]), [2, 1])
    assert positions.prefixes().tolist() == [
        [-1, -1, 1, 2, 3],
        [-1, 1, 2, 3, 7],
        [1, 2, 3, 7, 8],
        [-1, -1, -1, -1, 4],
        [-1, -1, -1, 4, 9],
    ]
    generated = positions.select([2, 3]).prefixes(generated_only=True)
    assert generated.tolist() == [[-1, -1, 3, 7, 8], [-1, -1, -1, -1, -1]]
    assert positions.drafted.tolist() == [7, 8, -1, 9, -1]
    assert positions.generated == [1, 2, 3, 0, 1]


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    row = make_row([3, 3, 5, 5, 6], 2, presence_penalty=0.5, frequency_penalty=0.25)
    scores = torch.zeros(2, VOCAB)
    positions = Positions.of_block([row], torch.tensor([[5]]), [1])
    found = run(PENALTIES, scores, positions)
    assert found[0, [3, 5, 6, 7]].tolist() == [0.0, -1.0, -0.75, 0.0]
    assert found[1, [3, 5, 6, 7]].tolist() == [0.0, -1.25, -0.75, 0.0]


def test_ties_at_the_edge_of_a_filter_are_kept() -> None:
    scores = torch.tensor([[3.0, 2.0, 2.0, 2.0, -9.0]])
    rows = [make_row([1], 1, do_sample=True, top_k=2), make_row([1], 1, do_sample=True, top_p=0.5)]
    for row in rows:
        kept = run(WARPERS, scores, at_end(row)).isfinite()
        assert kept.tolist() == [[True, True, True, True, False]]


def test_a_nucleus_wider_than_the_short_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that need the whole vocabulary sorted, beside rows that do not."""
    rows = [make_row([1], 1, i, do_sample=True, top_p=p) for i, p in enumerate([0.3, 0.99, 0.6])]
    scores = random_scores(3) / 8
    expected = run(WARPERS, scores, at_end(*rows))
    monkeypatch.setattr("draftproof.processing.warpers.NUCLEUS", 4)
    assert torch.equal(run(WARPERS, scores, at_end(*rows)), expected)
    assert expected.isfinite().sum(-1).tolist()[1] > 40


def test_warpers_leave_greedy_rows_alone() -> None:
    row = make_row([1], 1, temperature=0.0, do_sample=True, top_k=2, top_p=0.1, min_p=0.5)
    scores = random_scores(1)
    assert torch.equal(run(STAGES, scores, at_end(row)), scores)
    assert choose(scores, at_end(row)).tolist() == scores.argmax(-1).tolist()


def test_stages_never_write_into_what_they_are_given() -> None:
    settings, _ = CASES["all"]
    scores = random_scores(1)
    before = scores.clone()
    run(STAGES, scores, at_end(make_row(SEQUENCES[1], 4, **settings)))
    assert torch.equal(scores, before)


def test_choices_do_not_depend_on_the_batch() -> None:
    """Sampled and greedy rows, together and one by one: the same tokens."""
    rows = [
        make_row(SEQUENCES[i % 6], 4, i, do_sample=i % 3 > 0, temperature=0.5 + i / 4)
        for i in range(9)
    ]
    scores = random_scores(9)
    together = choose(scores, at_end(*rows)).tolist()
    alone = [choose(scores[i : i + 1], at_end(row)).item() for i, row in enumerate(rows)]
    assert together == alone
    assert together[::3] == scores[::3].argmax(-1).tolist()
    assert together != scores.argmax(-1).tolist()


def test_logits_of_another_width_are_aligned() -> None:
    logits = random_scores(2)
    assert torch.equal(align(logits, 60), logits[:, :60])
    wide = align(logits, 70)
    assert torch.equal(wide[:, :VOCAB], logits)
    assert wide[:, VOCAB:].isneginf().all()


def test_a_processor_that_returns_something_else_is_named() -> None:
    class Broken:
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            return scores[:, :3]

    row = make_row([1, 2], 1, logits_processor=(Broken(),))
    with pytest.raises(InputError, match=r"Broken returned \[1, 3\], expected scores \[1, 67\]"):
        run(OWN, random_scores(1), at_end(row))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_of_equal_scores_the_lowest_id_is_best(dtype: torch.dtype) -> None:
    """`max` and `argmax` find the same token, however many share the highest score."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 7, 64, 1000, 49152):
        scores = torch.randint(-3, 3, (9, size), generator=generator).to(dtype)
        scores[3] = -torch.inf
        first = torch.tensor([row.tolist().index(max(row.tolist())) for row in scores])
        scores[4, -1] = torch.nan
        first[3:5] = BROKEN  # no score above -inf, and one that is no number
        assert torch.equal(best(scores), first)
        live = first >= 0
        assert torch.equal(scores.argmax(-1)[live], first[live])


def test_drafts_under_rejection_sampling_have_numbers_of_their_own() -> None:
    """With the target's own numbers a rejected draft would be proposed again by the rest."""
    settings = Settings(do_sample=True, coupling=Coupling.REJECTION, seed=1)
    row = Row(slot=0, request=Request(index=0, prompt=[1], settings=settings, stream=5), tokens=[1])
    count = 40
    drafts = torch.zeros(1, count, dtype=torch.int64)
    positions = Positions.of_block([row], drafts, [count])
    scores = torch.zeros(count + 1, 50)
    choices, drafted = choose(scores, positions), choose(scores, positions, drafting=True)
    assert (choices == drafted).float().mean() < 0.3
    seeded = replace(settings, coupling=Coupling.SEEDED)
    coupled = Row(slot=0, request=replace(row.request, settings=seeded), tokens=[1])
    positions = Positions.of_block([coupled], drafts, [count])
    assert torch.equal(choose(scores, positions), choose(scores, positions, drafting=True))
