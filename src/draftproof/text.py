"""Between text and token ids: prompts in, incremental text out, and whose ids are whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from draftproof.errors import InputError, VocabularyError

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]
REPLACEMENT = "\ufffd"


def as_prompts(prompts: Any) -> list[Prompt]:
    """The prompts of a call as a list; whatever can be gone through once will do.

    Raises InputError for a single prompt, and for what has no order.
    """
    if isinstance(prompts, (str, bytes, bytearray, Mapping)) or getattr(prompts, "ndim", 2) < 2:
        raise InputError("generate takes a list of prompts; wrap a single prompt in a list")
    if isinstance(prompts, Set):
        raise InputError("generate takes a list of prompts, got a set, which has no order")
    if not isinstance(prompts, Iterable):
        raise InputError(f"generate takes a list of prompts, got {type(prompts).__name__}")
    found = list(prompts)
    if found and isinstance(found[0], (int, Mapping)):
        raise InputError("generate takes a list of prompts; wrap a single prompt in a list")
    return found


def encode(tokenizer: Any, prompt: Any, vocab_size: int) -> list[int]:
    """Token ids of a string, of chat messages, or of ids given as they are.

    Raises InputError, naming what is wrong with the prompt.
    """
    if prompt is None or isinstance(prompt, (bytes, bytearray, Mapping, Set)):
        raise InputError(
            f"got {type(prompt).__name__}; a prompt is a string, a list of token ids, or a list of "
            "chat messages"
        )
    if isinstance(prompt, str):
        ids = encode_text(_need(tokenizer, "a string"), prompt)
    elif _is_chat(prompt):
        text = render_chat(_need(tokenizer, "chat messages"), prompt)
        ids = encode_text(tokenizer, text, add_special_tokens=False)
    elif hasattr(prompt, "tolist"):
        ids = prompt.tolist()
    elif isinstance(prompt, Iterable):
        ids = [*prompt]
    else:
        raise InputError(f"got {prompt!r}; a prompt is a string or a list")
    return checked_ids(ids, vocab_size)


def _need(tokenizer: Any, what: str) -> Any:
    if tokenizer is None:
        raise InputError(f"{what} needs a tokenizer; give token ids, or load one with the model")
    return tokenizer


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)


def encode_text(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text.

    Text that came out of a chat template begins with the bos token already. A tokenizer that adds
    one would make two, which the model has never seen: the added one is left out.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start + 1} is half of a surrogate pair, which is no text"
        ) from error
    ids = list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])
    bos = getattr(tokenizer, "bos_token", None)
    doubled = ids[:2] == [getattr(tokenizer, "bos_token_id", None)] * 2
    return ids[1:] if bos and doubled and add_special_tokens and text.startswith(bos) else ids


def render_chat(tokenizer: Any, messages: Any, **variables: Any) -> str:
    """Chat messages as the model's template writes them, by default ready for an answer.

    The template writes the special tokens itself. variables: of `apply_chat_template`
    """
    if variables.get("chat_template") is None and getattr(tokenizer, "chat_template", None) is None:
        raise InputError("the tokenizer has no chat template; give the prompt as text")
    keywords = {"add_generation_prompt": True, **variables}
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **keywords)
    except Exception as error:  # a template is a program that came with the model
        raise InputError(
            f"the chat template refuses: {str(error) or type(error).__name__}"
        ) from error
    return text


def checked_ids(ids: list[int], vocab_size: int) -> list[int]:
    """The ids, if they are a prompt. Raises InputError."""
    if not ids:
        raise InputError("the prompt has no tokens; give at least one (for instance the bos token)")
    for position, token in enumerate(ids):
        if type(token) is not int:
            raise InputError(
                f"position {position} holds {token!r}; a prompt is a string, a list of token ids, "
                "or a list of chat messages"
            )
        if not 0 <= token < vocab_size:
            raise InputError(
                f"token id {token} at position {position} is outside the vocabulary of {vocab_size}"
            )
    return ids


def require_same_vocabulary(target: Any, draft: Any) -> None:
    """Raise VocabularyError unless both tokenizers give every shared token the same id.

    Different padding of the embeddings does not matter, nor do tokens that only one side has.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    shared = ours.keys() & theirs.keys()
    if len(shared) < 0.9 * max(len(ours), len(theirs)):
        raise VocabularyError(
            f"target and draft have different tokenizers: {len(ours)} and {len(theirs)} tokens, "
            f"{len(shared)} in common; use a draft of the same family, or draft='ngram'"
        )
    for token in sorted(shared):
        if ours[token] != theirs[token]:
            raise VocabularyError(
                f"target and draft have different tokenizers: {token!r} is {ours[token]} in the "
                f"target and {theirs[token]} in the draft; use a draft of the same family, or "
                "draft='ngram'"
            )


@dataclass(slots=True)
class Detokenizer:
    """Text of a growing row, piece by piece, never splitting a character.

    The pieces put together are the decoded whole. Only tokens since the last piece are decoded
    anew, after a few older ones that fix how the tokenizer joins them.
    """

    tokenizer: Any
    ids: list[int] = field(default_factory=list)
    prefix: int = 0
    shown: int = 0
    skip_special_tokens: bool = True

    def push(self, new: Sequence[int], *, final: bool = False) -> str:
        """Text that has become certain with these tokens; the rest with `final`."""
        self.ids += new
        before = self._decode(self.ids[self.prefix : self.shown])
        after = self._decode(self.ids[self.prefix :])
        if len(after) <= len(before) or (after.endswith(REPLACEMENT) and not final):
            return after[len(before) :] if final else ""
        self.prefix, self.shown = self.shown, len(self.ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return decode(self.tokenizer, ids, skip_special_tokens=self.skip_special_tokens)


def decode(tokenizer: Any, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Text of token ids, exactly: no spaces are cleaned up."""
    text: str = tokenizer.decode(
        list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return text
