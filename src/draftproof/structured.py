"""Outputs that obey a JSON schema, a regular expression, a choice or a grammar (llguidance).

A constraint is a logits processor: every token of the row is checked, drafts, correction and bonus
alike, so that speculation can no more leave the grammar than plain decoding can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from draftproof.errors import InputError

# Between the parts of a JSON text: room for indentation, and an end to a model that is stuck on it.
WHITESPACE = r"[ \t\n\r]{0,24}"


class GrammarProcessor:
    """Forbids every token that the grammar does not allow after what the row has generated.

    The first call's ids are the prompt. Later ones may come again or out of order: what is known of
    the row is compared with the ids given, and taken back where they differ.

    tokenizer:  llguidance's view of the tokenizer, shared by all rows
    Raises InputError when the grammar cannot be used.
    """

    def __init__(self, grammar: str, tokenizer: Any) -> None:
        from llguidance import LLMatcher

        self._grammar, self._tokenizer = grammar, tokenizer
        self._matcher = LLMatcher(tokenizer, grammar)
        self._prompt_len: int | None = None
        self._consumed: list[int] = []
        if self._matcher.is_error():
            raise InputError(_first_line(self._matcher.get_error()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """One for another row, which shares nothing but the tokenizer."""
        return type(self)(self._grammar, self._tokenizer)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """ids [1, T], scores [1, V] -> scores with -inf where the grammar forbids a token."""
        if self._prompt_len is None:
            self._prompt_len = ids.shape[1]
        self._follow(ids[0, self._prompt_len :].tolist())
        allowed = self._allowed(scores.shape[-1]).to(scores.device)
        return scores.masked_fill(~allowed, -torch.inf)

    def _allowed(self, width: int) -> Tensor:
        """Which tokens may follow, [width] bool; ids beyond the tokenizer's own never may."""
        allowed = torch.zeros(width, dtype=torch.bool)
        if self._matcher.is_stopped():  # the grammar is complete: only eos is left to say
            allowed[self._tokenizer.eos_token] = True
            return allowed
        mask = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1  # [bytes, 8], lowest first
        known = bits.flatten()[: min(width, self._tokenizer.vocab_size)].bool()
        allowed[: len(known)] = known
        return allowed

    def _follow(self, generated: Sequence[int]) -> None:
        """Bring the matcher to the place after these tokens."""
        same = 0
        for known, given in zip(self._consumed, generated, strict=False):
            if known != given:
                break
            same += 1
        if back := len(self._consumed) - same:
            self._matcher.rollback(back)
            del self._consumed[same:]
        for token in generated[same:]:
            if self._matcher.is_stopped() or not self._matcher.consume_token(token):
                return  # eos, or tokens after the end of a complete grammar
            self._consumed.append(token)


@dataclass(kw_only=True)
class Constrainer:
    """Makes the processor of a constraint for one model.

    tokenizer:   a fast one of transformers
    vocab_size:  of the logits
    eos:         ids that end a row
    """

    tokenizer: Any
    vocab_size: int
    eos: Sequence[int]
    _known: Any = field(default=None, init=False)

    def __call__(self, kind: str, value: Any) -> GrammarProcessor:
        """kind, value: as in `grammar_of`. Raises InputError for what cannot be enforced."""
        if self._known is None:  # takes a second for a large vocabulary
            self._known = _view(self.tokenizer, self.vocab_size, self.eos)
        return GrammarProcessor(grammar_of(kind, value), self._known)


def _view(tokenizer: Any, vocab_size: int, eos: Sequence[int]) -> Any:
    try:
        import llguidance.hf
    except ImportError as error:
        raise InputError(
            "structured outputs need llguidance: pip install 'draftproof[structured]'"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("structured outputs need a fast tokenizer (tokenizer.json)")
    size = max(vocab_size, len(tokenizer))
    return llguidance.hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=list(eos) or None)


def grammar_of(kind: str, value: Any) -> str:
    """llguidance's grammar of a constraint.

    kind:   json_schema, json_object, regex, choice or grammar (Lark)
    value:  a JSON schema, None, a regular expression, a list of texts, or the grammar
    Raises InputError for what is none.
    """
    from llguidance import LLMatcher

    if kind in ("json_object", "json_schema"):
        schema = {"type": "object"} if kind == "json_object" else value
        if not isinstance(schema, Mapping):
            raise InputError("a JSON schema is an object")
        options: Any = {"whitespace_flexible": False, "whitespace_pattern": WHITESPACE}
        return _checked(LLMatcher.grammar_from_json_schema(dict(schema), overrides=options))
    if kind == "choice":
        return _checked(LLMatcher.grammar_from_regex("|".join(map(re.escape, value))))
    if kind == "regex":
        return _checked(LLMatcher.grammar_from_regex(value))
    return _checked(LLMatcher.grammar_from_lark(value))


def _checked(grammar: Any) -> str:
    from llguidance import LLMatcher

    text = grammar if isinstance(grammar, str) else json.dumps(grammar)
    if problem := LLMatcher.validate_grammar(text):
        raise InputError(_first_line(problem))
    return text


def _first_line(problem: str) -> str:
    return problem.strip().splitlines()[0]
