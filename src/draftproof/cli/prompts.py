"""Prompts of commands that compare: all at once, without settings of their own but a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftproof.cli.inputs import Item, Prompt, digest, item_of, open_source
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.schema import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptItem:
    """One prompt to be decoded by all sides of a comparison.

    source:  where it came from, for messages: "line 3", "prompt 1", a file name
    ids:     token ids, once encoded
    """

    index: int
    source: str
    prompt: Prompt | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    ids: list[int] | None = None
    error: str | None = None


def read_items(
    prompts: Sequence[str] | None, source: str | None, *, chat: bool = False
) -> list[PromptItem]:
    """All prompts, from `--prompt`, `--input` (a file, a folder, `-`) or stdin.

    Raises InputError when the source is missing, or holds no prompt at all.
    """
    with open_source(prompts, source, chat=chat) as opened:
        items = [
            _prompt_item(item_of(row, index, digest(row), opened))
            for index, row in enumerate(opened.rows())
        ]
    if not items:
        raise InputError(f"no prompts in {source or 'stdin'}")
    return items


# what a line may say here besides its prompt
ALLOWED = {"prompt", "messages", "max_tokens", "max_completion_tokens", "model"}


def _prompt_item(item: Item) -> PromptItem:
    place: dict[str, Any] = {"index": item.index, "source": item.source, "labels": item.labels}
    if item.line is None:
        return PromptItem(**place, error=str(item.error))
    request = item.line.request
    others = sorted(request.model_fields_set - ALLOWED)
    if others:
        error = f"{others[0]}: sides are compared with the settings of the command line only"
        return PromptItem(**place, error=error)
    try:
        prompt = _prompt(request)
    except InputError as error:
        return PromptItem(**place, error=str(error))
    return PromptItem(
        **place,
        prompt=prompt,
        max_new_tokens=getattr(request, "limit", request.max_tokens),
    )


def _prompt(request: Request) -> Any:
    from draftproof.schema import ChatRequest

    if isinstance(request, ChatRequest):
        return [message.for_template() for message in request.messages]
    if len(request.prompt) != 1:
        raise InputError("prompt: one per line can be compared")
    return request.prompt[0]
