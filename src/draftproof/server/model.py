"""The model as the server offers it, and what its requests become."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from draftproof.api import Pair
from draftproof.batch import Request as EngineRequest
from draftproof.errors import InputError
from draftproof.online import reporter_of, requests_of
from draftproof.options import Options
from draftproof.results import Reporter
from draftproof.schema import (
    Constraint,
    Head,
    Request,
    RequestError,
    Work,
    parse_json,
    translate,
)
from draftproof.structured import Constrainer

T = TypeVar("T")


@dataclass(kw_only=True)
class ServedModel:
    """A pair under the names and limits of one server; what `schema.translate` asks of a model."""

    pair: Pair
    names: Sequence[str]
    limit: int | None
    engine: Options
    _encoder: ThreadPoolExecutor = field(init=False)
    tokenizer: Any = field(init=False)
    _constrainer: Constrainer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tokenizer = self.pair.tokenizer
        # one thread: fast tokenizers may not be used for encoding by several at a time
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftproof-text")
        if self.limit is not None and self.pair.max_model_len is not None:
            self.limit = min(self.limit, self.pair.max_model_len)
        if self.max_model_len is None:
            raise InputError("the target does not say how long its context is: give max_model_len")

    @property
    def vocab_size(self) -> int:
        """Size of the target's embedding."""
        return self.pair.vocab_size

    @property
    def max_model_len(self) -> int | None:
        """Tokens of a request, prompt and new ones."""
        return self.pair.max_model_len if self.limit is None else self.limit

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a row."""
        return self.pair.eos_token_ids

    def constrain(self, constraint: Constraint) -> Any:
        """A processor that enforces it."""
        if self._constrainer is None:
            self._constrainer = Constrainer(
                tokenizer=self.tokenizer, vocab_size=self.vocab_size, eos=self.eos_token_ids
            )
        return self._constrainer(constraint.kind, constraint.value)

    async def in_text_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run what encodes text where it holds up neither the engine nor other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._encoder, work, *args)

    async def prepare(self, body: bytes, parse: Callable[[Any], Request]) -> ServedRequest:
        """From a body to what the engine takes. Raises RequestError, naming the field."""
        return await self.in_text_thread(self._prepare, body, parse)

    def _prepare(self, body: bytes, parse: Callable[[Any], Request]) -> ServedRequest:
        request = parse(parse_json(body))
        work = translate(request, self, names=self.names, constrain=self.constrain)
        if work.prediction is not None:
            raise RequestError(
                "prediction: cannot be served here; leave it out", param="prediction"
            )
        if request.stream and request.echo and work.options.get("prompt_logprobs") is not None:
            raise RequestError("echo: with logprobs it cannot be streamed", param="echo")
        return ServedRequest(
            work=work,
            requests=requests_of(self.pair, work.ids, work.options),
            reporter=reporter_of(self.pair, self.engine),
            head=Head(
                id=uuid.uuid4().hex,
                created=int(time.time()),
                model=request.model or self.names[0],
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ServedRequest:
    """One HTTP request on its way through the engine: `n` engine requests for each prompt."""

    work: Work
    requests: list[EngineRequest]
    reporter: Reporter
    head: Head
