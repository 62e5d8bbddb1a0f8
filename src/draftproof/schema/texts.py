"""The text of an answer: where it is cut, and what may be shown while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.text import REPLACEMENT, Detokenizer, decode
from draftproof.types import FinishReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """The text of an answer and, where the request named it, what ended it.

    stop_reason: a stop string, an id of `stop_token_ids`, or None; as in vLLM
    """

    text: str
    stop_reason: str | int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRules:
    """How one request's tokens become text.

    A stop string is not part of the text, nor is the token that ends it, unless the request says so
    (`include_stop_str_in_output`). Token ids are always reported in full.
    """

    tokenizer: Any
    skip_special_tokens: bool = True
    include_stop: bool = False
    stop_strings: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()

    def ending(self, ids: Sequence[int], reason: FinishReason | None) -> Ending:
        """The text of a finished row."""
        if self.tokenizer is None:
            return Ending(text="")
        if reason is FinishReason.EOS:
            last = ids[-1]
            shown = ids if self.include_stop else ids[:-1]
            return Ending(
                text=self._decode(shown), stop_reason=last if last in self.stop_token_ids else None
            )
        text = self._decode(ids)
        return self._cut(text, ids) if reason is FinishReason.STOP else Ending(text=text)

    def _cut(self, text: str, ids: Sequence[int]) -> Ending:
        """Cut at the first stop string that the last token completed."""
        before = len(self._decode(ids[:-1]).rstrip(REPLACEMENT))
        found = [
            (start, stop)
            for stop in self.stop_strings
            if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if not found:  # it is made of special tokens, which the text leaves out
            return Ending(text=text, stop_reason=self._among_specials(ids))
        start, stop = min(found)
        return Ending(text=text[: start + len(stop) * self.include_stop], stop_reason=stop)

    def _among_specials(self, ids: Sequence[int]) -> str | None:
        raw = decode(self.tokenizer, ids, skip_special_tokens=False)
        return next((stop for stop in self.stop_strings if stop in raw), None)

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self.tokenizer, ids, skip_special_tokens=self.skip_special_tokens)


@dataclass(slots=True)
class GrowingText:
    """Pieces of an answer as it grows; put together they are the text of its `Ending`.

    What may be the beginning of a stop string is held back until it is known.
    """

    rules: TextRules
    ids: list[int] = field(default_factory=list)
    shown: int = 0
    _text: str = ""
    _writer: Detokenizer | None = None

    def push(self, new: Sequence[int]) -> str:
        """What can be shown after these tokens of a row that goes on."""
        if self.rules.tokenizer is None:
            return ""
        if self._writer is None:
            self._writer = Detokenizer(
                self.rules.tokenizer, skip_special_tokens=self.rules.skip_special_tokens
            )
        self.ids += new
        self._text += self._writer.push(new)
        return self._show(len(self._text) - self._held())

    def finish(self, new: Sequence[int], reason: FinishReason) -> tuple[str, str | int | None]:
        """The rest, and the stop reason."""
        self.ids += new
        ending = self.rules.ending(self.ids, reason)
        self._text = ending.text
        return self._show(len(self._text)), ending.stop_reason

    def _show(self, end: int) -> str:
        piece = self._text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece

    def _held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        if self.rules.include_stop:
            return 0
        longest = max(map(len, self.rules.stop_strings), default=1) - 1
        tail = self._text[-longest:] if longest else ""
        return max(
            (
                len(tail) - start
                for start in range(len(tail))
                if any(stop.startswith(tail[start:]) for stop in self.rules.stop_strings)
            ),
            default=0,
        )
