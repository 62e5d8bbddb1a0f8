"""A server as a subject. Requests are bounded in number and in time; a row that fails says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar
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
KEY_VARIABLE = "DRAFTPROOF_API_KEY"  # the only place a key may come from


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
    budget: Budget = field(default_factory=Budget)

    model: ClassVar[Any] = None

    def __post_init__(self) -> None:
        self.url = _clean_url(self.url)
        self.float32 = None if self.float32 is None else _clean_url(self.float32)

    @property
    def abilities(self) -> frozenset[Ability]:
        """Another number of requests at a time; scores where the server's format has them."""
        found = {Ability.BATCH, Ability.TOPS, Ability.PROMPTS}
        found |= {Ability.SCORES} if isinstance(self.dialect, Vllm) else set()
        found |= {Ability.FLOAT32} if self.float32 is not None else set()
        return frozenset(found)

    def settings(self) -> dict[str, Any]:
        """Without any key."""
        known: dict[str, Any] = {
            "kind": self.dialect.name,
            "url": self.url,
            "batch": self.batch,
            "k": self.k,
            "timeout": self.timeout,
        }
        known |= {"float32": self.float32} if self.float32 is not None else {}
        return known | ({"note": self.note} if self.note else {})

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """All tasks, at most `batch` of them in flight; order of answers is order of tasks."""
        with self._client(setup.dtype) as client:
            served = self.served or self._served(client)
            before = self._metrics(client)
            with ThreadPoolExecutor(setup.batch or self.batch) as pool:
                replies = list(
                    pool.map(lambda task: self._ask(client, task, inquiry, served), inquiry.tasks)
                )
            counters = self._counters(replies, before, self._metrics(client))
        return Run(answers=tuple(reply.answer for reply in replies), counters=counters)

    def _client(self, dtype: str | None = None) -> httpx.Client:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # trust_env: no proxy of the environment between us and the server under test
        url = self.url if dtype is None or self.float32 is None else self.float32
        return httpx.Client(base_url=url, timeout=self.timeout, headers=headers, trust_env=False)

    def scores(self, inquiry: Inquiry, run: Run, dtype: str | None = None) -> Run:
        """One request per answered row, one at a time: the prompt and the answer as one prompt."""
        dialect = self.dialect
        assert isinstance(dialect, Vllm)
        with self._client(dtype) as client:
            served = self.served or self._served(client)

            def ask(task: Task, answer: Answer) -> Answer:
                if answer.error or not answer.ids or not task.prompt:
                    return Answer(error="nothing to score")
                body = dialect.scoring(task, answer.ids, served)
                read = partial(dialect.scored, first=len(task.prompt))
                tops = self._post(client, body, read)
                return Answer(error=tops) if isinstance(tops, str) else replace(answer, tops=tops)

            pairs = zip(inquiry.tasks, run.answers, strict=True)
            return Run(answers=tuple(ask(task, answer) for task, answer in pairs))

    def _ask(self, client: httpx.Client, task: Task, inquiry: Inquiry, served: str | None) -> Reply:
        body = self.dialect.request(task, inquiry, served)
        reply = self._post(client, body, self.dialect.reply)
        return Reply(answer=Answer(error=reply)) if isinstance(reply, str) else reply

    def _post(self, client: httpx.Client, body: Body, read: Callable[[Any], Read]) -> Read | str:
        """What `read` makes of the response, or why there is none."""
        refusal = self.budget.refusal()
        if refusal is not None:
            return refusal
        try:
            response = client.post(self.dialect.path, json=body)
            if response.status_code != 200:
                return f"HTTP {response.status_code}"
            return read(response.json())
        except httpx.TimeoutException:
            return f"timed out after {self.timeout:g} s"
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: no complete response"
        except BadAnswerError as error:
            return str(error)
        except ValueError:
            return "the response is not JSON"

    def _served(self, client: httpx.Client) -> str | None:
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


def _clean_url(url: str) -> str:
    """Without query and fragment. Raises InputError for a password in it."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise InputError(f"no passwords in a URL: set {KEY_VARIABLE} instead")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
