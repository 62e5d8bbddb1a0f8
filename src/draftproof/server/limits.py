"""What stands between the network and the routes: keys, body sizes, request ids, log lines."""

from __future__ import annotations

import hmac
import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.errors import error_body

log = logging.getLogger("draftproof.server")
OPEN = frozenset({"/health", "/ready", "/metrics", "/version"})


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware: refuses what has no key or is too large, and writes one line per request.

    keys:       accepted API keys; none: everybody may ask
    max_bytes:  of a request's body

    Plain ASGI: a streamed answer passes through as it comes, and so does a client's going away.
    """

    app: ASGIApp
    keys: Sequence[str]
    max_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        call = _Call(scope["method"], scope["path"], _request_id(headers))
        scope.setdefault("state", {})["request_id"] = call.id
        refusal = self._refusal(scope["path"], headers)
        try:
            if refusal is not None:
                await _answer(call.watched(send), *refusal)
                return
            await self.app(scope, self._counted(receive), call.watched(send))
        except _TooLargeError:
            if call.status:
                raise
            await _answer(call.watched(send), 413, self._too_large())
        finally:
            call.log()

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, dict[str, Any]] | None:
        if self.keys and path not in OPEN and not self._known(headers.get(b"authorization", b"")):
            message = "missing or unknown API key; send it as 'Authorization: Bearer KEY'"
            return 401, error_body(message, "authentication_error", code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, error_body("content-length is no number", "invalid_request_error")
        return (413, self._too_large()) if int(length) > self.max_bytes else None

    def _too_large(self) -> dict[str, Any]:
        message = f"the body has more than the {self.max_bytes} bytes that this server takes"
        return error_body(message, "invalid_request_error")

    def _known(self, header: bytes) -> bool:
        """Every key is compared, each in constant time."""
        given = header.removeprefix(b"Bearer ").strip()
        matches = [hmac.compare_digest(given, key.encode()) for key in self.keys]
        return any(matches)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise _TooLargeError
            return message

        return counted


class _TooLargeError(Exception):
    pass


class _Call:
    """One request as the log shows it: never its body, never its headers."""

    def __init__(self, method: str, path: str, id: str) -> None:
        self.method, self.path, self.id, self.status = method, path, id, 0
        self._begin = time.perf_counter()

    def watched(self, send: Send) -> Send:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                message = {**message, "headers": [*message["headers"], self._header]}
            await send(message)

        return watched

    @property
    def _header(self) -> tuple[bytes, bytes]:
        return b"x-request-id", self.id.encode("latin-1")

    def log(self) -> None:
        log.info(
            "%s %s",
            self.method,
            self.path,
            extra={
                "request_id": self.id,
                "status": self.status or 499,  # nothing was sent: the client had gone
                "seconds": round(time.perf_counter() - self._begin, 4),
            },
        )


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if given.isprintable() and 0 < len(given) <= 128 else uuid.uuid4().hex


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
