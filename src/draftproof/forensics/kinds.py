"""What each kind of difference predicts, as data, and the judge of it.

A known fact that contradicts an entry refutes it. An entry whose needs are all known is supported;
one with some of them is a candidate as long as nothing refutes it. This table is all the logic
there is; the documentation prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.forensics.facts import WORDS, Fact, Facts, sentence
from draftproof.forensics.verdicts import Cause, Finding, Kind

LEAST = 3  # independent observations before a kind is named
Expected = dict[str, bool]
SETUP = frozenset({Kind.OTHER_PROMPT, Kind.OTHER_DEFAULTS, Kind.SAMPLED, Kind.OTHER_MODEL})
TOLD = 6  # facts in a finding's reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One way in which a kind shows.

    needs:    facts that must be known with this value before the kind is named
    predicts: facts that must not be known with the other value
    """

    kind: Kind
    name: str
    needs: Expected
    predicts: Expected = field(default_factory=dict)

    @property
    def expected(self) -> Expected:
        """All that it says of the facts."""
        return self.needs | self.predicts

    def refuted_by(self, facts: Facts) -> list[str]:
        """Known facts that contradict it."""
        known = {name: facts.value(name) for name in self.expected}
        return [n for n, want in self.expected.items() if known[n] is (not want)]

    def met(self, facts: Facts) -> list[str]:
        """Its needs that are known to hold."""
        return [name for name, want in self.needs.items() if facts.value(name) is want]

    def supported(self, facts: Facts) -> bool:
        """All needs hold, at enough places together."""
        seen = sum(getattr(facts, name).observations for name in self.expected)
        return len(self.met(facts)) == len(self.needs) and seen >= LEAST


# what every fault of a verifier predicts: plain decoding and the prefill know no drafts
SPECULATION: Expected = {"wrong_without_drafts": False, "wrong_at_prefill": False}
# what shows by other tokens with right scores of the candidate's own
EMITTED: Expected = {"own_best": False, "own_best_at_prefill": True}
# special conditions that have kinds of their own
NO_CONDITION: Expected = {
    "only_ties": False,
    "only_prompts_with_eos": False,
    "gone_without_minimum": False,
    "another_rows_answer": False,
    "tokens_reordered": False,
}

TABLE: tuple[Entry, ...] = (
    Entry(kind=Kind.DELIVERY, name="right tokens, wrong order", needs={"tokens_reordered": True}),
    Entry(kind=Kind.ROW_MIXUP, name="another row's answer", needs={"another_rows_answer": True}),
    Entry(
        kind=Kind.ROW_MIXUP,
        name="changed by a shorter neighbour",
        needs={"wrong_alone": False, "beside_shorter": True},
    ),
    Entry(
        kind=Kind.ROW_MIXUP,
        name="changed by an equal neighbour",
        needs={"wrong_alone": False, "beside_equal": True},
    ),
    Entry(
        kind=Kind.ROW_MIXUP,
        name="emits another row's choice",
        needs={"wrong_alone": False, "own_best": False, "own_best_alone": True},
    ),
    Entry(
        kind=Kind.POSITIONS,
        name="moved positions explain it",
        needs={"positions": True},
        predicts={
            "beside_shorter": False,
            "beside_equal": False,
            "own_best": True,
            **NO_CONDITION,
        },
    ),
    Entry(
        kind=Kind.PADDING_MASK,
        name="changed by a longer neighbour only",
        needs={"wrong_alone": False, "beside_longer": True, "positions": False},
        predicts={
            "beside_shorter": False,
            "beside_equal": False,
            "own_best": True,
            **NO_CONDITION,
        },
    ),
    Entry(
        kind=Kind.PADDING_MASK,
        name="pad is taken for eos",
        needs={"only_prompts_with_eos": True},
        predicts={"own_best": True},
    ),
    Entry(
        kind=Kind.STALE_KV,
        name="after a rejection",
        needs={"rejection_breaks": True},
        predicts={
            **SPECULATION,
            **NO_CONDITION,
            "own_best": True,
            "positions": False,
            "right_drafts_break": False,
            "bonus_wrong": False,
        },
    ),
    Entry(
        kind=Kind.STALE_KV,
        name="right afresh, wrong after earlier rounds",
        needs={"right_afresh": True, "wrong_alone": True, "wrong_in_first_step": False},
        predicts={
            **SPECULATION,
            **NO_CONDITION,
            "own_best": True,
            "positions": False,
            "right_drafts_break": False,
            "token_left_out": False,
            "only_beyond_window": False,
        },
    ),
    Entry(
        kind=Kind.STALE_KV,
        name="rounds of unlike rows",
        needs={"wrong_alone": False, "beside_longer": False},
        predicts={
            **SPECULATION,
            **NO_CONDITION,
            "wrong_in_plain_batch": False,
            "beside_shorter": False,
            "beside_equal": False,
            "own_best": True,
            "positions": False,
        },
    ),
    Entry(
        kind=Kind.ROW_MIXUP,
        name="rounds of unlike rows",
        needs={"wrong_alone": False, "beside_longer": False},
        predicts={
            **SPECULATION,
            **NO_CONDITION,
            "wrong_in_plain_batch": False,
            "beside_shorter": False,
            "beside_equal": False,
            "own_best": True,
            "positions": False,
        },
    ),
    Entry(
        kind=Kind.CORRECTION,
        name="the bonus token is wrong",
        needs={"bonus_wrong": True},
        predicts={
            **SPECULATION,
            "right_drafts_break": False,
            "first_draft_goes_out": False,
            "rejection_breaks": False,
        },
    ),
    Entry(
        kind=Kind.CORRECTION,
        name="a chosen token is left out",
        needs={"token_left_out": True},
        predicts=SPECULATION,
    ),
    Entry(
        kind=Kind.CORRECTION,
        name="wrong drafts go out",
        needs={"first_draft_goes_out": True, "later_draft_goes_out": True},
        predicts=SPECULATION | EMITTED | NO_CONDITION,
    ),
    Entry(
        kind=Kind.UNVERIFIED,
        name="a wrong first draft goes out, later ones do not",
        needs={"first_draft_goes_out": True, "later_draft_goes_out": False},
        predicts=SPECULATION | EMITTED | NO_CONDITION,
    ),
    Entry(
        kind=Kind.VERIFYING,
        name="accepted drafts change the scores",
        needs={"right_drafts_break": True, "wrong_without_drafts": False},
        predicts={
            "wrong_at_prefill": False,
            "own_best": True,
            "positions": False,
            "only_beyond_window": False,
            "rejection_breaks": False,
            **NO_CONDITION,
        },
    ),
    Entry(
        kind=Kind.WINDOW,
        name="right within the window, off beyond it",
        needs={"only_beyond_window": True},
        predicts={"rejection_breaks": False, "own_best": True, "positions": False},
    ),
    Entry(
        kind=Kind.PROCESSORS,
        name="gone without the processor",
        needs={"gone_without_minimum": True},
        predicts={"wrong_without_drafts": False},
    ),
    Entry(kind=Kind.TIES, name="the higher id of equal logits", needs={"only_ties": True}),
    Entry(
        kind=Kind.OTHER_PROMPT,
        name="another prompt explains it",
        needs={"another_prompt": True},
        predicts={"wrong_without_drafts": True, "wrong_alone": True, "own_best": True},
    ),
    Entry(
        kind=Kind.OTHER_DEFAULTS,
        name="another default of decoding explains it",
        needs={"other_defaults": True},
        predicts={"wrong_without_drafts": True, "wrong_alone": True},
    ),
    Entry(
        kind=Kind.SAMPLED,
        name="tokens are drawn, not chosen",
        needs={"sampled": True},
        predicts={
            "wrong_without_drafts": True,
            "own_best": False,
            "own_best_at_prefill": False,
            "other_defaults": False,
        },
    ),
    Entry(
        kind=Kind.OTHER_MODEL,
        name="every score is off a little, from the prefill on",
        needs={"wrong_at_prefill": True, "off_everywhere": True},
        predicts={
            "wrong_without_drafts": True,
            "wrong_alone": True,
            "own_best": True,
            "another_prompt": False,
            "positions": False,
            **NO_CONDITION,
        },
    ),
    Entry(
        kind=Kind.OTHER_MODEL,
        name="without drafts every score is off a little",
        needs={"wrong_without_drafts": True, "off_everywhere": True},
        predicts={
            "wrong_alone": True,
            "own_best": True,
            "another_prompt": False,
            "positions": False,
            **NO_CONDITION,
        },
    ),
)


def judge(facts: Facts, *, certain: bool) -> Finding:
    """The kind that is left, the candidates, or that nothing is known.

    certain: whether the difference is beyond anything that rounding makes
    """
    left = [entry for entry in TABLE if not entry.refuted_by(facts)]
    proved = [entry for entry in left if entry.supported(facts)]
    kinds = list(dict.fromkeys(entry.kind for entry in proved))
    if len(kinds) == 1:
        return _named(proved, facts)
    possible = proved or [entry for entry in left if set(entry.met(facts)) - WEAK]
    return _several(sorted(possible, key=lambda one: -_support(one, facts)), facts, certain)


def _support(entry: Entry, facts: Facts) -> int:
    return sum(facts.value(name) is want for name, want in entry.expected.items())


def _named(entries: list[Entry], facts: Facts) -> Finding:
    first = max(entries, key=lambda one: _support(one, facts))
    names = [*first.needs, *(name for name in first.predicts if facts.value(name) is not None)]
    return Finding(
        cause=Cause.HARNESS if first.kind in SETUP else Cause.BUG,
        kind=first.kind,
        rule=first.name,
        reasons=tuple(sentence(name, getattr(facts, name)) for name in names[:TOLD]),
    )


def _several(entries: list[Entry], facts: Facts, certain: bool) -> Finding:
    """Candidates in order of support; a setup that differs is no bug, so both are undecided."""
    kinds = tuple(dict.fromkeys(entry.kind for entry in entries))
    proved = any(entry.supported(facts) for entry in entries)
    certain = certain or proved or facts.value("own_best") is False
    bug = certain and not SETUP & set(kinds)
    return Finding(
        cause=Cause.BUG if bug else Cause.UNDECIDED,
        kind=Kind.UNKNOWN if bug else None,
        rule="several kinds fit"
        if kinds
        else "no known kind fits"
        if bug
        else "not enough is known",
        candidates=kinds,
        reasons=tuple(sentence(name, fact) for name, fact in _telling(facts)),
        missing=_missing(entries or [e for e in TABLE if not e.refuted_by(facts)], facts),
    )


WEAK = frozenset({"wrong_alone", "wrong_in_first_step"})  # true of too much to suggest a kind
CALM = frozenset({"own_best", "own_best_alone", "own_best_at_prefill", "right_afresh"})


def _telling(facts: Facts) -> list[tuple[str, Fact]]:
    return [(n, f) for n, f in facts.known() if f.value is not (n in CALM)][:TOLD] or list(
        facts.known()
    )[:TOLD]


def _missing(entries: list[Entry], facts: Facts) -> tuple[str, ...]:
    """What would separate the candidates and is not known, and why it is not."""
    told = []
    for name in dict.fromkeys(name for one in entries for name in one.expected):
        views = {one.expected.get(name) for one in entries}
        needed = any(name in entry.needs for entry in entries)
        if facts.value(name) is None and (needed or len(views) > 1):
            why = getattr(facts, name).control
            told.append(WORDS[name]["how"] + (f" ({why})" if why else ""))
    return tuple(dict.fromkeys(told))


def as_markdown() -> str:
    """The table for the documentation."""
    lines = ["| kind | shows as | needs | refuted by |", "| --- | --- | --- | --- |"]
    for entry in TABLE:
        needs = ", ".join(_word(name, want) for name, want in entry.needs.items())
        against = ", ".join(_word(name, not want) for name, want in entry.predicts.items())
        lines.append(f"| {entry.kind.value} | {entry.name} | {needs} | {against} |")
    return "\n".join(lines)


def _word(name: str, value: bool) -> str:
    return f"`{name}`" if value else f"not `{name}`"


def facts_as_markdown() -> str:
    """What each fact means, for the documentation."""
    lines = ["| fact | true | false |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {one['yes']} | {one['no']} |" for name, one in WORDS.items()]
    return "\n".join(lines)
