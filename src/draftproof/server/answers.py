"""Responses: JSON, event streams, and a client that goes away before there is one."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Send

from draftproof.server.errors import described, error_body

LEAST = -9999.0  # JSON has no infinity; what vLLM writes for the log-probability of no chance
CLIENT_GONE = 499


def as_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    media = "application/json"
    return Response(_dump(body), status_code=status, headers=headers, media_type=media)


def _dump(body: Any) -> str:
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(body), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return LEAST
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list) else value


class EventStream(StreamingResponse):
    """Chunks as server-sent events, closed with `[DONE]`.

    An error after the first chunk is sent as an event of its own. However the stream ends, the
    chunks' generator is closed, so that the rows of a client that went away are free.
    """

    def __init__(
        self,
        first: Any,
        rest: AsyncGenerator[Any, None],
        on_failure: Callable[[int], None],
    ) -> None:
        self._rest = rest
        super().__init__(_events(first, rest, on_failure), media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._rest.aclose()


async def _events(
    first: Any, rest: AsyncIterator[Any], on_failure: Callable[[int], None]
) -> AsyncIterator[str]:
    yield f"data: {_dump(first)}\n\n"
    try:
        async for chunk in rest:
            yield f"data: {_dump(chunk)}\n\n"
    except Exception as error:
        status, body = described(error)
        on_failure(status)
        yield f"data: {_dump(body)}\n\n"
    yield "data: [DONE]\n\n"


async def unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The work's response, or none for a client that went away: then the work is cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _gone(request: Request) -> None:
    """Returns when the client has closed its connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def no_such_route(request: Request, error: Exception) -> Response:
    """OpenAI's error object for a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = error_body(message, "invalid_request_error")
    return as_json(body, error.status_code, error.headers)


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body that the route parses itself, for the OpenAPI page."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": schema}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
