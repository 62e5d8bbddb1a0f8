"""What was observed about a candidate, apart from what it means.

Every field is a `Fact`: true, false or not known, with how often it was seen and where. The probes
fill what a vantage point (engine, server, file) lets them see; `kinds` judges the record alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """One observation.

    value:   None where it is not known
    hits:    places or rows at which it was seen, of `trials` looked at
    control: the control it was read from, or why it could not be
    detail:  what exactly was seen, in words
    """

    value: bool | None = None
    hits: int = 0
    trials: int = 0
    control: str = ""
    detail: str = ""

    @property
    def observations(self) -> int:
        """Independent places that support the value, one at least where it is known."""
        if self.value is None:
            return 0
        return max(1, self.hits if self.value else self.trials - self.hits)


NOT_KNOWN = Fact()


def _fact(yes: str, no: str, how: str) -> Any:
    """yes, no: the sentence for either value; how: what would have to be asked to know it."""
    return field(default=NOT_KNOWN, metadata={"yes": yes, "no": no, "how": how})


OUTPUTS = "rows that differ in their tokens"
SCORES = "scores of the likeliest tokens (logits or log-probabilities) from the candidate"
ALONE = "the candidate one row at a time"
ZERO = "the candidate without drafts (K = 0)"
DRAFTS = "known drafts handed to the candidate"
AGAIN = "prompts as token ids and a candidate that takes new ones"
LOCAL = "the target in this process (`&target=DIR` on a server)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that is known of a run whose tokens differ."""

    tokens_reordered: Fact = _fact(
        "the differing rows hold the reference's tokens in another order",
        "the differing rows hold other tokens, not the same in another order",
        OUTPUTS,
    )
    another_rows_answer: Fact = _fact(
        "rows hold the beginning of another row's answer", "no row holds another's answer", OUTPUTS
    )
    token_left_out: Fact = _fact(
        "after the fork the candidate goes on one token ahead of the reference",
        "the candidate leaves out no token",
        OUTPUTS,
    )
    only_ties: Fact = _fact(
        "at every fork the two logits are equal to the last bit and the higher id was taken",
        "the forks are not all exact ties",
        "float32 on both sides",
    )
    wrong_alone: Fact = _fact(
        "rows differ one at a time too (B = 1)", "one at a time every row agrees (B = 1)", ALONE
    )
    wrong_without_drafts: Fact = _fact(
        "without drafts, one row at a time (K = 0, B = 1), it differs too",
        "without drafts, one row at a time (K = 0, B = 1), everything agrees",
        ZERO,
    )
    wrong_in_plain_batch: Fact = _fact(
        "without drafts it differs in a batch (K = 0)",
        "without drafts a batch agrees (K = 0)",
        ZERO,
    )
    wrong_at_prefill: Fact = _fact(
        "the first token after a prompt is wrong, or its scores are, in a row alone",
        "the first token after a prompt and its scores are right in a row alone",
        AGAIN,
    )
    wrong_in_first_step: Fact = _fact(
        "given its text so far as a new prompt, the first step after the prefill is off",
        "given its text so far as a new prompt, the first step after the prefill is right",
        AGAIN,
    )
    right_afresh: Fact = _fact(
        "given the same text as a new prompt, it is right where it forked: what earlier rounds "
        "left behind is read later",
        "given the same text as a new prompt, it is wrong at the forks again",
        AGAIN,
    )
    beside_shorter: Fact = _fact(
        "a step beside one shorter row is off", "a step beside one shorter row is right", AGAIN
    )
    beside_equal: Fact = _fact(
        "a step beside one row of equal length is off",
        "a step beside one row of equal length is right",
        AGAIN,
    )
    beside_longer: Fact = _fact(
        "a step beside one longer row is off", "a step beside one longer row is right", AGAIN
    )
    own_best: Fact = _fact(
        "every emitted token is the candidate's own best",
        "tokens are emitted that the candidate's own scores rank second or lower",
        SCORES,
    )
    own_best_alone: Fact = _fact(
        "one row at a time, every emitted token is the candidate's own best",
        "one row at a time too, tokens are emitted that are not its own best",
        f"{ALONE}, with scores",
    )
    own_best_at_prefill: Fact = _fact(
        "after a new prompt the candidate emits its own best token",
        "after a new prompt, where no draft is involved, it emits a token that is not its own best",
        f"{AGAIN}, with scores",
    )
    first_draft_goes_out: Fact = _fact(
        "a wrong first draft of a block is emitted", "a wrong first draft is caught", DRAFTS
    )
    later_draft_goes_out: Fact = _fact(
        "a wrong draft right behind accepted ones is emitted",
        "a wrong draft right behind accepted ones is caught",
        DRAFTS,
    )
    bonus_wrong: Fact = _fact(
        "after a fully accepted block, and only there, the next token is wrong",
        "the token after a fully accepted block is right",
        DRAFTS,
    )
    right_drafts_break: Fact = _fact(
        "drafts that are all right and all accepted change the output or its scores",
        "drafts that are all right leave the output and its scores right",
        DRAFTS,
    )
    rejection_breaks: Fact = _fact(
        "it takes a rejection, and shows in a later block",
        "it shows without a rejection, or in the block of the rejection itself",
        DRAFTS,
    )
    positions: Fact = _fact(
        "the target itself gives the candidate's tokens or scores at moved positions",
        "no moved positions that were tried give the candidate's tokens or scores",
        LOCAL,
    )
    another_prompt: Fact = _fact(
        "the target itself gives the candidate's tokens or scores for another prompt",
        "no change of the prompt that was tried gives the candidate's tokens or scores",
        LOCAL,
    )
    other_defaults: Fact = _fact(
        "the target itself gives the candidate's tokens under another default of decoding",
        "no default of decoding that was tried gives the candidate's tokens",
        LOCAL,
    )
    sampled: Fact = _fact(
        "the tokens look drawn from the target's distribution rather than chosen as the best",
        "the tokens do not look drawn from the target's distribution",
        LOCAL,
    )
    off_everywhere: Fact = _fact(
        "nearly all scores are off, and by little, from the first places on",
        "scores are off at some places only, or by much",
        SCORES,
    )
    only_prompts_with_eos: Fact = _fact(
        "only prompts with the eos id inside differ, and none with another token in its place",
        "it does not depend on an eos id inside the prompt",
        "prompts with and without the eos id",
    )
    only_beyond_window: Fact = _fact(
        "nothing is off up to some number of tokens, and everything beyond it",
        "rows of every length are off",
        AGAIN,
    )
    gone_without_minimum: Fact = _fact(
        "without min_new_tokens nothing differs",
        "it does not depend on min_new_tokens",
        "the same prompts without min_new_tokens",
    )

    def known(self) -> Iterator[tuple[str, Fact]]:
        """Facts with a value, by name."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return ((name, fact) for name, fact in pairs if fact.value is not None)

    def value(self, name: str) -> bool | None:
        """Of a fact by name."""
        found: Fact = getattr(self, name)
        return found.value


WORDS: dict[str, dict[str, str]] = {one.name: dict(one.metadata) for one in fields(Facts)}


def sentence(name: str, fact: Fact) -> str:
    """A fact in words, with its counts."""
    text = WORDS[name]["yes" if fact.value else "no"]
    counts = f"{fact.hits} of {fact.trials}" if fact.trials else ""
    where = ", ".join(part for part in (counts, fact.control) if part)
    detail = f": {fact.detail}" if fact.detail else ""
    return f"{text}{f' ({where})' if where else ''}{detail}"
