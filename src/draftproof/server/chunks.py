"""The pieces of a streamed answer, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftproof.logprobs import chat_logprobs, completion_logprobs, describe
from draftproof.schema import ChatRequest, Head, Work, usage
from draftproof.schema.chat import NamedTool
from draftproof.schema.responses import FINISH, chat_message, renamed
from draftproof.schema.texts import GrowingText
from draftproof.server.loop import Update
from draftproof.types import Result, TokenLogprob


@dataclass(kw_only=True)
class ChunkWriter:
    """Chunks of one request; `n` choices per prompt, each growing at its own pace.

    Text that may turn out to be a stop string is held back until it is known, so that the chunks
    together are exactly the text of the answer that is not streamed.
    """

    work: Work
    head: Head
    texts: dict[int, GrowingText] = field(default_factory=dict, init=False)
    offsets: dict[int, int] = field(default_factory=dict, init=False)
    results: dict[int, Result] = field(default_factory=dict, init=False)

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.work.request, ChatRequest)

    def begin(self) -> Iterator[dict[str, Any]]:
        """What can be said before the first token."""
        for index in range(len(self.work.prompts) * self.work.n):
            self.texts[index] = GrowingText(self.work.rules)
            if self._is_chat:
                yield self._chunk(index, {"role": "assistant", "content": ""})
            elif self.work.request.echo:
                text = self.work.prompts[index // self.work.n].text or ""
                self.offsets[index] = len(text)
                yield self._chunk(index, text)

    def grow(self, index: int, update: Update, result: Result | None) -> Iterator[dict[str, Any]]:
        """What a round added to a choice.

        result:  with the last update of a choice
        """
        writer, ids = self.texts[index], list(update.token_ids)
        if result is None:
            piece, finish, reason = writer.push(ids), None, None
        else:
            self.results[index] = result
            piece, reason = writer.finish(ids, result.finish_reason)
            finish = FINISH[result.finish_reason]
        entries = self._entries(update)
        if self._is_chat:
            yield from self._chat(index, piece, entries, ids, finish, reason)
        elif piece or entries or finish or self.work.request.return_token_ids:
            more = {"finish_reason": finish, "stop_reason": reason}
            yield self._chunk(index, piece, entries, ids, **more)

    def _chat(
        self,
        index: int,
        piece: str,
        entries: list[TokenLogprob] | None,
        ids: list[int],
        finish: str | None,
        reason: Any,
    ) -> Iterator[dict[str, Any]]:
        request = self.work.request
        assert isinstance(request, ChatRequest)
        if request.tool_choice == "required":
            if finish is None:  # calls can be told apart once the list is complete
                return
            whole = self.work.rules.ending(
                self.results[index].token_ids, self.results[index].finish_reason
            ).text
            message, finish = chat_message(request, whole, finish)
            delta = {k: v for k, v in message.items() if k in ("content", "tool_calls") and v}
            yield self._chunk(index, _numbered(delta), None, ids, finish_reason=finish)
            return
        if piece or entries or request.return_token_ids:
            yield self._chunk(index, self._delta(index, piece), entries, ids)
        if finish is not None:
            yield self._chunk(index, {}, None, (), finish_reason=finish, stop_reason=reason)

    def _delta(self, index: int, piece: str) -> dict[str, Any]:
        request = self.work.request
        assert isinstance(request, ChatRequest)
        if not isinstance(request.tool_choice, NamedTool):
            return {"content": piece}
        call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
        if index not in self.offsets:  # the first piece says what is called
            self.offsets[index] = 0
            call |= {"id": f"call_{self.head.id[:24]}", "type": "function"}
            call["function"]["name"] = request.tool_choice.function.name
        return {"tool_calls": [call]}

    def _entries(self, update: Update) -> list[TokenLogprob] | None:
        if not update.logprobs:
            return None
        entries = describe(update.logprobs, update.token_ids, self.work.rules.tokenizer)
        return renamed(self.work, entries)

    def _chunk(
        self,
        index: int,
        content: str | dict[str, Any],
        entries: list[TokenLogprob] | None = None,
        ids: Sequence[int] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """A chunk of one choice; content: the text, or a chat's delta."""
        choice: dict[str, Any] = {"index": index, "logprobs": self._logprobs(index, entries)}
        choice["delta" if self._is_chat else "text"] = content
        choice |= {"finish_reason": None, **more}
        if self.work.request.return_token_ids:
            choice["token_ids"] = list(ids)
        return self._head([choice])

    def _logprobs(self, index: int, entries: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        if self._is_chat:
            return chat_logprobs(entries)
        start = self.offsets.get(index, 0)
        self.offsets[index] = start + sum(len(entry.token or "") for entry in entries)
        return completion_logprobs(entries, start=start)

    def _head(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{self.head.id}",
            "object": kind,
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }
        if self._wants_usage:
            chunk["usage"] = None
        return chunk

    @property
    def _wants_usage(self) -> bool:
        options = self.work.request.stream_options
        return bool(options and options.include_usage)

    def end(self) -> Iterator[dict[str, Any]]:
        """The usage, where it was asked for: a last chunk without choices."""
        if self._wants_usage:
            results = [self.results[index] for index in sorted(self.results)]
            yield self._head([]) | {"usage": usage(self.work, results, cached=True)}


def _numbered(delta: dict[str, Any]) -> dict[str, Any]:
    """Calls in a stream carry their number."""
    calls = delta.get("tool_calls")
    if calls is None:
        return delta
    return delta | {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]}
