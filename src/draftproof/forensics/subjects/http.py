"""A server as a subject. Requests are bounded in number and in time; a row that fails says so."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from draftproof.errors import InputError
from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Counters,
    Inquiry,
    Run,
    Setup,
    Task,
)
from draftproof.forensics.subjects.casting import cast
from draftproof.forensics.subjects.dialects import (
    BadAnswerError,
    Body,
    Dialect,
    Reply,
    Vllm,
    counted,
    prometheus,
)

Read = TypeVar("Read")
FLOAT32 = "float32"
KEY_VARIABLE = "DRAFTPROOF_API_KEY"  # the only place a key may come from
TOLD = 300  # characters of a server's own message that are shown


@dataclass(kw_only=True)
class Budget:
    """How much a server may be asked in all: requests, and seconds from the first one."""

    requests: int = 2000
    seconds: float = 1800.0
    used: int = 0
    started: float | None = None

    def refusal(self) -> str | None:
        """Why no further request may be sent; counts this one otherwise."""
        self.started = time.monotonic() if self.started is None else self.started
        if self.used >= self.requests:
            return f"not asked: the budget of {self.requests} requests is used up"
        if time.monotonic() - self.started > self.seconds:
            return f"not asked: the budget of {self.seconds:g} s is used up"
        self.used += 1
        return None


@dataclass(kw_only=True)
class HttpSubject:
    """A server behind a URL, asked `batch` requests at a time.

    served:  the model's name for the server; None asks /v1/models
    timeout: seconds per request
    note:    said in every report, for instance that texts were made into tokens again
    float32: URL of the same server started in float32, for the controls that look for logic
    dtype:   what the server computes in, where it is known; "float32" needs no twin
    model:   its target in this process, to try explanations on; None: not at hand
    """

    name: str
    url: str
    dialect: Dialect
    served: str | None = None
    batch: int = 8
    k: int | None = None
    timeout: float = 120.0
    note: str = ""
    float32: str | None = None
    dtype: str | None = None
    model: Any = None
    budget: Budget = field(default_factory=Budget)
    _casts: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.url = _clean_url(self.url)
        self.float32 = None if self.float32 is None else _clean_url(self.float32)

    @property
    def abilities(self) -> frozenset[Ability]:
        """Another number of requests at a time; scores where the server's format has them."""
        found = {Ability.BATCH, Ability.TOPS, Ability.PROMPTS}
        found |= {Ability.SCORES} if isinstance(self.dialect, Vllm) else set()
        twin = self.float32 is not None or self.dtype == FLOAT32
        found |= {Ability.FLOAT32} if twin else set()
        return frozenset(found)

    def model_as(self, dtype: str) -> tuple[Any, None]:
        """The target of this process in another dtype; a server's draft is not at hand."""
        if dtype not in self._casts:
            self._casts[dtype] = cast(self.model, dtype)
        return self._casts[dtype], None

    def settings(self) -> dict[str, Any]:
        """Without any key."""
        known: dict[str, Any] = {
            "kind": self.dialect.name,
            "url": self.url,
            "batch": self.batch,
            "k": self.k,
            "timeout": self.timeout,
        }
        more = {"float32": self.float32, "dtype": self.dtype, "note": self.note}
        return known | {name: value for name, value in more.items() if value}

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """All tasks, at most `batch` of them in flight; order of answers is order of tasks."""
        with self._client(setup.dtype) as client:
            served = self._model_name(client)
            before = self._metrics(client)
            with ThreadPoolExecutor(setup.batch or self.batch) as pool:
                ask = partial(self._ask, client, inquiry, served)
                replies = list(pool.map(ask, inquiry.tasks))
            counters = self._counters(replies, before, self._metrics(client))
        return Run(answers=tuple(reply.answer for reply in replies), counters=counters)

    def _client(self, dtype: str | None = None) -> httpx.Client:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # trust_env: no proxy of the environment between us and the server under test
        url = self.url if dtype is None or self.float32 is None else self.float32
        return httpx.Client(
            base_url=url,
            timeout=self.timeout,
            headers=headers,
            limits=httpx.Limits(max_connections=None),
            verify=_certificates(),
            trust_env=False,
        )

    def scores(self, inquiry: Inquiry, run: Run, dtype: str | None = None) -> Run:
        """One request per answered row, one at a time: the prompt and the answer as one prompt."""
        dialect = self.dialect
        assert isinstance(dialect, Vllm)
        with self._client(dtype) as client:
            served = self._model_name(client)

            def ask(task: Task, answer: Answer) -> Answer:
                if answer.error or not answer.ids or not task.prompt:
                    return Answer(error="nothing to score")
                body = dialect.scoring(task, answer.ids, served)
                read = partial(dialect.scored, first=len(task.prompt))
                tops = self._post(client, body, read)
                return Answer(error=tops) if isinstance(tops, str) else replace(answer, tops=tops)

            pairs = zip(inquiry.tasks, run.answers, strict=True)
            return Run(answers=tuple(ask(task, answer) for task, answer in pairs))

    def _ask(self, client: httpx.Client, inquiry: Inquiry, served: str | None, task: Task) -> Reply:
        body = self.dialect.request(task, inquiry, served)
        reply = self._post(client, body, self.dialect.reply)
        return Reply(answer=Answer(error=reply)) if isinstance(reply, str) else reply

    def _post(self, client: httpx.Client, body: Body, read: Callable[[Any], Read]) -> Read | str:
        """What `read` makes of the response, or why there is none."""
        refusal = self.budget.refusal()
        if refusal is not None:
            return refusal
        asked = f"POST {client.base_url.join(self.dialect.path.lstrip('/'))}"
        try:
            response = client.post(self.dialect.path, json=body)
            if response.status_code != 200:
                return f"{asked}: HTTP {response.status_code}{_told(response)}"
            return self._read(response, read)
        except httpx.TimeoutException:
            return f"{asked}: timed out after {self.timeout:g} s"
        except httpx.HTTPError as error:
            return f"{asked}: no complete response ({type(error).__name__}: {error})"
        except BadAnswerError as error:
            return f"{asked}: {error}"

    def _read(self, response: httpx.Response, read: Callable[[Any], Read]) -> Read:
        """Raises BadAnswerError for whatever is not in the server's format."""
        try:
            body = response.json()
        except ValueError:
            raise BadAnswerError("the response is not JSON") from None
        try:
            return read(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadAnswerError):
                raise
            what = f"{type(error).__name__}: {error}"
            raise BadAnswerError(f"not a response of kind={self.dialect.name} ({what})") from error

    def _model_name(self, client: httpx.Client) -> str | None:
        """As given, or as the server calls it; asked for once."""
        self.served = self.served or self._first_model(client)
        return self.served

    def _first_model(self, client: httpx.Client) -> str | None:
        """The first model of /v1/models, None where there is no such list."""
        if "/v1/" not in self.dialect.path or self.budget.refusal():
            return None
        try:
            return str(client.get("/v1/models").json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
            return None

    def _metrics(self, client: httpx.Client) -> dict[str, float]:
        if not self.dialect.metrics or self.budget.refusal():
            return {}
        try:
            response = client.get("/metrics")
            return prometheus(response.text) if response.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def _counters(
        self, replies: Sequence[Reply], before: dict[str, float], after: dict[str, float]
    ) -> Counters:
        if self.dialect.metrics:
            return counted(before, after)
        told = [r for r in replies if r.drafted is not None]
        if not told:
            return Counters()
        accepted = [r.accepted for r in told if r.accepted is not None]
        return Counters(
            drafted=sum(r.drafted or 0 for r in told),
            accepted=sum(accepted) if accepted else None,
            source=f"{self.dialect.name} responses",
        )


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: a control may be many small runs, each with a client of its own."""
    return httpx.create_ssl_context()


def _told(response: httpx.Response) -> str:
    """The server's own message, without the key that it may repeat."""
    text = " ".join(_message(response).split())
    key = os.environ.get(KEY_VARIABLE)
    text = text.replace(key, "***") if key else text
    return f": {text[:TOLD]}{'...' if len(text) > TOLD else ''}" if text else ""


def _message(response: httpx.Response) -> str:
    """{"error": {"message": "..."}} and its relatives, or the body as it is."""
    try:
        body = response.json()
    except ValueError:
        return response.text
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    return body if isinstance(body, str) else json.dumps(body) if body else ""


def _clean_url(url: str) -> str:
    """Without query, fragment and a final /v1: paths are added here, as each kind of server has
    them. Raises InputError for a password in it."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise InputError(f"no passwords in a URL: set {KEY_VARIABLE} instead")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"
