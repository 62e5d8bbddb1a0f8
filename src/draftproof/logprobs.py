"""Log-probabilities with their tokens' text, and the shapes in which OpenAI's API returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.text import REPLACEMENT, decode
from draftproof.types import TokenLogprob, TopLogprobs


def describe(
    pieces: Sequence[TopLogprobs], tokens: Sequence[int], tokenizer: Any
) -> list[TokenLogprob]:
    """One entry per token, read from the device; tokenizer: None leaves out the text."""
    lines = [
        line
        for piece in pieces
        for line in zip(
            piece.chosen.tolist(),
            piece.rank.tolist(),
            piece.ids.tolist(),
            piece.values.tolist(),
            strict=True,
        )
    ]
    return [
        _entry(
            tokenizer,
            token,
            chosen,
            rank,
            tuple(
                _entry(tokenizer, other, value, place)
                for place, (other, value) in enumerate(zip(ids, values, strict=True), start=1)
            ),
        )
        for token, (chosen, rank, ids, values) in zip(tokens, lines, strict=True)
    ]


def _entry(
    tokenizer: Any, token: int, logprob: float, rank: int, top: tuple[TokenLogprob, ...] = ()
) -> TokenLogprob:
    text = None if tokenizer is None else decode(tokenizer, [token], skip_special_tokens=False)
    return TokenLogprob(
        token_id=token,
        logprob=logprob,
        rank=rank,
        token=text,
        bytes=None if text is None else token_bytes(tokenizer, token, text),
        top=top,
    )


def token_bytes(tokenizer: Any, token: int, text: str) -> list[int] | None:
    """The bytes a token stands for; None where only part of a character and the tokenizer mute.

    Byte-level tokenizers write a byte as one printable character, others as <0x41>.
    """
    if REPLACEMENT not in text:
        return list(text.encode())
    written = tokenizer.convert_ids_to_tokens(token)
    if written.startswith("<0x") and written.endswith(">"):
        return [int(written[3:-1], 16)]
    alphabet = _byte_alphabet()
    known = [alphabet[character] for character in written if character in alphabet]
    return known if len(known) == len(written) else None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte: itself in Latin-1, the others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` object of a chat completion's choice."""
    return {"content": [_chat_entry(entry) | _chat_top(entry) for entry in entries]}


def _chat_entry(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes}


def _chat_top(entry: TokenLogprob) -> dict[str, Any]:
    return {"top_logprobs": [_chat_entry(other) for other in entry.top]}


def completion_logprobs(entries: Sequence[TokenLogprob | None], start: int = 0) -> dict[str, Any]:
    """The `logprobs` object of a completion's choice; the token itself is among the top ones.

    entries: None for the first token of a prompt that is echoed
    start:   characters before the first token
    """
    offsets, place = [], start
    for entry in entries:
        offsets.append(place)
        place += len((entry.token if entry is not None else None) or "")
    return {
        "tokens": [None if entry is None else entry.token for entry in entries],
        "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
        "top_logprobs": [
            None if entry is None else {e.token: e.logprob for e in (*entry.top, entry)}
            for entry in entries
        ],
        "text_offset": offsets,
    }
