"""A pair without models: it continues a prompt in a way that depends on the prompt alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftproof.cli import app, loading
from draftproof.cli.options import ModelOptions
from draftproof.engine.events import RoundEvent, RowRound
from draftproof.errors import InputError
from draftproof.text import encode
from draftproof.types import FinishReason, Result, SpecStats

Tamper = Callable[[list[int], dict[str, Any]], list[int]]


class FakeTokenizer:
    """Characters are tokens; a chat is its messages in angle brackets."""

    chat_template = "{{ messages }}"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        if "alien" in messages[0]["content"]:
            raise ValueError("aliens are not understood")
        return "".join(f"<{message['content']}>" for message in messages)


class FakePair:
    """Characters are tokens; rows finish shortest first, which is not the order of the prompts.

    stop_after:  results after which Ctrl-C arrives
    tamper:      what a faulty engine makes of a row, given the settings of the call
    """

    vocab_size = 256
    max_model_len = 40
    eos_token_ids = ()

    def __init__(self, *, stop_after: int | None = None, tamper: Tamper | None = None) -> None:
        self.tokenizer = FakeTokenizer()
        self.stop_after = stop_after
        self.tamper = tamper
        self.opened_with: ModelOptions | None = None
        self.calls: list[dict[str, Any]] = []
        self.decoded: list[list[int]] = []

    def describe(self) -> dict[str, Any]:
        return {"target": "fake"}

    def encode(self, prompt: Any) -> list[int]:
        ids = encode(self.tokenizer, prompt, self.vocab_size)
        if len(ids) > self.max_model_len:
            raise InputError(f"{len(ids)} tokens are too many")
        return ids

    def generate(self, prompts: list[list[int]], **options: Any) -> list[Result]:
        return sorted(self.as_completed(prompts, **options), key=lambda result: result.index)

    def as_completed(self, prompts: list[list[int]], **options: Any) -> Iterator[Result]:
        self.calls.append(options)
        answers = options.get("num_return_sequences", [1] * len(prompts))
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        rows = [(index, sequence) for index in order for sequence in range(answers[index])]
        for count, (index, sequence) in enumerate(rows):
            if count == self.stop_after:
                raise KeyboardInterrupt
            yield self._result(index, sequence, prompts[index], options)

    def _result(
        self, index: int, sequence: int, prompt: list[int], options: dict[str, Any]
    ) -> Result:
        self.decoded.append(prompt)
        limit = options["max_new_tokens"]
        ids = continuation(prompt, limit[index] if isinstance(limit, list) else limit)
        if self.tamper is not None:
            ids = self.tamper(ids, options)
        for observer in options.get("observers", ()):
            observer.on_round(_round(index, ids))
        return Result(
            index=index,
            sequence=sequence,
            token_ids=ids,
            text=self.tokenizer.decode(ids),
            finish_reason=FinishReason.LENGTH,
            prompt_len=len(prompt),
            stats=SpecStats(num_spec_steps=2, num_draft_tokens=8, num_accepted_draft_tokens=6),
            mode="speculative",
            numerics="fast",
        )


def continuation(prompt: list[int], length: int) -> list[int]:
    """What the fake target says after a prompt."""
    return [97 + (sum(prompt) + 7 * i) % 26 for i in range(length)]


def text_after(prompt: str, length: int) -> str:
    return "".join(map(chr, continuation([ord(letter) for letter in prompt], length)))


def _round(index: int, ids: list[int]) -> RoundEvent:
    row = RowRound(
        index=index,
        slot=0,
        kv_len=0,
        fed=1,
        drafts=(1, 2),
        target_ids=(1, 2, 3),
        accepted=1,
        emitted=tuple(ids),
        finish_reason=FinishReason.LENGTH,
    )
    return RoundEvent(number=1, rows=(row,), waiting=0)


def use(monkeypatch: pytest.MonkeyPatch, pair: FakePair) -> FakePair:
    """Let commands load this pair."""

    def open_pair(options: ModelOptions) -> FakePair:
        pair.opened_with = options
        return pair

    monkeypatch.setattr(loading, "open_pair", open_pair)
    return pair


def invoke(*arguments: object, stdin: str | bytes | None = None) -> Any:
    """Run a command; anything but an orderly exit is a failure of the test."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
