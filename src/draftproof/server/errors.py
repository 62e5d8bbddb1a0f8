"""From an error to OpenAI's error object and an HTTP status."""

from __future__ import annotations

from typing import Any

from draftproof.errors import (
    DraftproofError,
    InputError,
    OutOfMemoryError,
    UnsupportedArgumentError,
)
from draftproof.schema import RequestError
from draftproof.server.loop import EngineStoppedError
from draftproof.server.service import DrainingError, QueueFullError

RETRY_AFTER = "1"  # seconds

STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (QueueFullError, 429, "rate_limit_error"),
    (DrainingError, 503, "server_error"),
    (EngineStoppedError, 503, "server_error"),
    (TimeoutError, 504, "timeout_error"),
    (OutOfMemoryError, 503, "server_error"),
    (MemoryError, 503, "server_error"),
    (InputError, 400, "invalid_request_error"),
    (UnsupportedArgumentError, 400, "invalid_request_error"),
    (DraftproofError, 500, "server_error"),
)


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def described(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Status and body of an error; of one that is not meant for users, only its kind."""
    if isinstance(error, RequestError):
        return error.status, {"error": error.as_dict()}
    for kind, status, name in STATUS:
        if isinstance(error, kind):
            return status, error_body(str(error) or kind.__name__, name)
    return 500, error_body(f"this request failed: {type(error).__name__}", "server_error")
