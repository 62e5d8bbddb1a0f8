"""The HTTP routes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

import draftproof
from draftproof.api import Pair
from draftproof.online import open_engine
from draftproof.options import Options
from draftproof.schema import (
    ChatRequest,
    CompletionRequest,
    parse_chat,
    parse_completion,
    response,
)
from draftproof.server.answers import (
    EventStream,
    as_json,
    documented,
    no_such_route,
    unless_gone,
)
from draftproof.server.chunks import ChunkWriter
from draftproof.server.errors import RETRY_AFTER, described
from draftproof.server.limits import Gate
from draftproof.server.metrics import Metrics, RequestTimes
from draftproof.server.model import ServedModel, ServedRequest
from draftproof.server.service import Service
from draftproof.server.words import DetokenizeRequest, TokenizeRequest, detokenize, tokenize


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What `draftproof serve` was told.

    names:            of the model, for clients; the first one is the default
    engine:           options of `Pair.open_engine`: max_num_seqs, num_speculative_tokens, ...
    max_waiting:      requests that may wait for a row; more get HTTP 429
    request_timeout:  seconds a request may take, None for no limit
    """

    names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None
    max_kv_tokens: int | None = None
    max_waiting: int = 256
    request_timeout: float | None = None
    max_body_bytes: int = 16 * 2**20
    drain_seconds: float = 30


class App:
    """The server's parts, and one method per route."""

    def __init__(self, pair: Pair, settings: ServerSettings) -> None:
        self.settings = settings
        self.model = ServedModel(
            pair=pair,
            names=settings.names,
            limit=settings.max_model_len,
            engine=cast(Options, settings.engine),
        )
        self.metrics = Metrics(settings.names[0])
        options: dict[str, Any] = {
            **settings.engine,
            "max_model_len": self.model.max_model_len,
            "observers": [self.metrics],
        }
        engine = open_engine(pair, cast(Options, options), max_kv_tokens=settings.max_kv_tokens)
        self.service = Service(engine=engine, max_waiting=settings.max_waiting)
        self.started = int(time.time())
        self._follow_the_engine()

    def _follow_the_engine(self) -> None:
        loop, engine = self.service.loop, self.service.engine
        room = engine.target.rows * engine.target.capacity
        follow = self.metrics.follow
        follow("num_requests_running", "Requests with a row.", lambda: loop.num_running)
        follow("num_requests_waiting", "Requests without one.", lambda: loop.num_waiting)
        follow(
            "kv_cache_usage_perc",
            "Share of the cache in use; 1 is all of it.",
            lambda: sum(engine.target.lengths) / room,
        )

    def build(self) -> FastAPI:
        """The ASGI application."""

        @contextlib.asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            self.service.start()
            yield
            await self.service.drain(self.settings.drain_seconds)

        app = FastAPI(title="draftproof", version=draftproof.__version__, lifespan=lifespan)
        app.add_api_route(
            "/v1/completions", self.completions, methods=["POST"], **documented(CompletionRequest)
        )
        app.add_api_route(
            "/v1/chat/completions", self.chat, methods=["POST"], **documented(ChatRequest)
        )
        app.add_api_route(
            "/tokenize", self.tokenize, methods=["POST"], **documented(TokenizeRequest)
        )
        app.add_api_route(
            "/detokenize", self.detokenize, methods=["POST"], **documented(DetokenizeRequest)
        )
        pages = {
            "/v1/models": self.models,
            "/health": self.health,
            "/ready": self.ready,
            "/metrics": self.show_metrics,
            "/version": self.version,
        }
        for path, page in pages.items():
            app.add_api_route(path, page, methods=["GET"])
        app.add_exception_handler(HTTPException, no_such_route)
        app.add_middleware(
            Gate, keys=self.settings.api_keys, max_bytes=self.settings.max_body_bytes
        )
        return app

    # -- completions

    async def completions(self, request: Request) -> Response:
        """Continue text or token ids."""
        return await self._answer(request, parse_completion)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(request, parse_chat)

    async def _answer(self, request: Request, parse: Callable[[Any], Any]) -> Response:
        times = RequestTimes(arrived=time.perf_counter())
        try:
            job = await self.model.prepare(await request.body(), parse)
            work = self._streamed if job.work.request.stream else self._whole
            return await unless_gone(request, work(job, times))
        except Exception as error:
            return self._failed(request, error)

    async def _whole(self, job: ServedRequest, times: RequestTimes) -> Response:
        results = {}
        async with asyncio.timeout(self.settings.request_timeout):
            async for place, update in self.service.updates(job.requests):
                if times.first_token is None and update.token_ids:
                    times.first_token = time.perf_counter()
                if update.row is not None:
                    results[place] = job.reporter.result(update.row)
        ordered = [results[place] for place in sorted(results)]
        times.ended = time.perf_counter()
        self.metrics.on_end(ordered, times)
        return as_json(response(job.work, ordered, job.head))

    async def _streamed(self, job: ServedRequest, times: RequestTimes) -> Response:
        """A stream, once there is something to say: an earlier error is an answer of its own."""
        chunks = self._chunks(job, times)
        return EventStream(await anext(chunks), chunks, self.metrics.count_failure)

    async def _chunks(
        self, job: ServedRequest, times: RequestTimes
    ) -> AsyncGenerator[dict[str, Any], None]:
        writer = ChunkWriter(work=job.work, head=job.head)
        begun = False
        async with (
            asyncio.timeout(self.settings.request_timeout),
            contextlib.aclosing(self.service.updates(job.requests)) as updates,
        ):
            async for place, update in updates:
                if times.first_token is None and update.token_ids:
                    times.first_token = time.perf_counter()
                if not begun:
                    begun = True
                    for chunk in writer.begin():
                        yield chunk
                result = None if update.row is None else job.reporter.result(update.row)
                for chunk in writer.grow(place, update, result):
                    yield chunk
        times.ended = time.perf_counter()
        self.metrics.on_end(list(writer.results.values()), times)
        for chunk in writer.end():
            yield chunk

    # -- the rest

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a text or a conversation."""
        return await self._words(request, tokenize)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        return await self._words(request, detokenize)

    async def _words(
        self, request: Request, route: Callable[[bytes, ServedModel], dict[str, Any]]
    ) -> Response:
        try:
            body = await request.body()
            return as_json(await self.model.in_text_thread(route, body, self.model))
        except Exception as error:
            return self._failed(request, error)

    async def models(self) -> Response:
        """The model under each of its names."""
        described = {"object": "model", "created": self.started, "owned_by": "draftproof"}
        described["max_model_len"] = self.model.max_model_len or 0
        root = self.settings.names[0]
        data = [{"id": name, **described, "root": root} for name in self.settings.names]
        return as_json({"object": "list", "data": data})

    async def health(self) -> Response:
        """200 while the engine runs."""
        return Response(status_code=200 if self.service.loop.alive else 503)

    async def ready(self) -> Response:
        """200 while new requests are taken."""
        taking = self.service.loop.alive and not self.service.draining
        return Response(status_code=200 if taking else 503)

    async def show_metrics(self) -> Response:
        """Prometheus' text format."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def version(self) -> Response:
        """The package's version, and how the model runs."""
        return as_json({"version": draftproof.__version__, "pair": self.model.pair.describe()})

    def _failed(self, request: Request, error: Exception) -> Response:
        status, body = described(error)
        self.metrics.count_failure(status)
        headers = {"Retry-After": RETRY_AFTER} if status in (429, 503) else None
        return as_json(body, status, headers)
