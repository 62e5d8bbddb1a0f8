"""A byte-level tokenizer made in code: any text, no files, characters that span tokens."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

EOS, START, STOP = "<|end|>", "<|start|>", "<|stop|>"
SPECIALS = (EOS, START, STOP)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|stop|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> Any:
    """One token per byte, then one per merge, then `<|end|>` (eos), `<|start|>` and `<|stop|>`.

    A character outside ASCII is several tokens, so that text streamed token by token is cut inside
    characters. merges: pairs of tokens that become one, such as ("t", "h"), ("th", "e").
    """
    tokens = [*_byte_alphabet(), *("".join(pair) for pair in merges), *SPECIALS]
    ids = {token: index for index, token in enumerate(tokens)}
    specials = [{"id": ids[token], "content": token, **_SPECIAL} for token in SPECIALS]
    model = {"type": "BPE", "vocab": ids, "merges": [" ".join(pair) for pair in merges]}
    options = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": specials,
        "pre_tokenizer": {"type": "ByteLevel", **options},
        "decoder": {"type": "ByteLevel", **options},
        "model": model,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=EOS)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


_SPECIAL = {
    "special": True,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
}


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each of the 256 bytes (as GPT-2 has it).

    Printable bytes of Latin-1 stand for themselves, the others for the characters from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
