"""What one request asks for: lengths and stopping (settings may differ in every row of a batch)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftproof.errors import InputError


def as_ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Normalise `eos_token_id` as transformers takes it: none, one id, or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(item) for item in value)


def as_strings(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Normalise `stop_strings`: none, one string, or several."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of one request, in transformers' names.

    Raises InputError when a number is out of range or a stop string is empty.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    eos_token_id: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise InputError(f"max_new_tokens must be 0 or more, got {self.max_new_tokens}")
        if self.min_new_tokens < 0:
            raise InputError(f"min_new_tokens must be 0 or more, got {self.min_new_tokens}")
        if any(not stop for stop in self.stop_strings):
            raise InputError("stop_strings holds an empty string, which would stop every row")
