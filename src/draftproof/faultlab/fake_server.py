"""A small server on the loopback around any subject, to try the HTTP path with known faults.

It speaks the formats of vLLM, SGLang and llama.cpp and plain OpenAI completions, well enough for
`HttpSubject`; it is a test double, not a way to serve.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from draftproof.faultlab.fake_server_formats import read, write
from draftproof.forensics.scoring import tops_after
from draftproof.forensics.subjects.base import Answer, Inquiry, Subject, Task

QUIET = 0.15  # seconds; see RequestBatcher
LATE = 2.0  # seconds after which a batch that was announced larger is answered as it is
PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What goes over the wire, before anything is done to it."""

    status: int
    body: bytes
    delay: float = 0.0
    declared: int | None = None  # Content-Length, where it is to lie


ServerFault = Callable[[int, Response], Response]  # told the number of the request, from 0


@dataclass(kw_only=True)
class _Waiting:
    """A request that is not answered yet."""

    task: Task
    rules: Inquiry
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer = field(default_factory=lambda: Answer(error="not answered"))


@dataclass(kw_only=True)
class RequestBatcher:
    """Takes requests from many connections and answers those that came together as one batch.

    quiet:    seconds without a new request after which those waiting are answered
    expected: sizes of the batches to come, where the client in this process says them; then there
              is no need to wait for quiet, but for a client that sends fewer
    """

    subject: Subject
    quiet: float = QUIET
    expected: list[int] = field(default_factory=list)
    waiting: list[_Waiting] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    requests: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)
    last: float = 0.0
    closed: bool = False

    def expect(self, sizes: Iterable[int]) -> None:
        """The sizes of the next batches, in place of what was expected before."""
        with self.lock:
            self.expected = list(sizes)

    def ask(self, task: Task, rules: Inquiry) -> Answer:
        """Wait for the batch this request falls into."""
        mine = _Waiting(task=task, rules=rules)
        with self.lock:
            self.waiting.append(mine)
            self.last = time.monotonic()
            self.lock.notify_all()
        mine.done.wait(PATIENCE)
        return mine.answer

    def number(self) -> int:
        """Count a request."""
        with self.lock:
            self.requests += 1
            return self.requests - 1

    def close(self) -> None:
        """Let `work` and whoever is being delayed go."""
        with self.lock:
            self.closed = True
            self.lock.notify_all()

    def delay(self, seconds: float) -> None:
        """Sleep, unless the batcher is closed."""
        with self.lock:
            self.lock.wait_for(lambda: self.closed, seconds)

    def work(self) -> None:
        """Answer batch after batch until closed."""
        while not self.closed:
            with self.lock:
                self.lock.wait_for(lambda: self.closed or self._ready, self.quiet / 5)
                batch = self._taken() if self._ready else []
            for group in _alike(batch):
                self._answer(group)

    @property
    def _ready(self) -> bool:
        if not self.waiting:
            return False
        if self.expected:
            come = len(self.waiting) >= self.expected[0]
            return come or time.monotonic() - self.last > LATE
        return time.monotonic() - self.last > self.quiet

    def _taken(self) -> list[_Waiting]:
        batch, self.waiting, self.expected = self.waiting, [], self.expected[1:]
        return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        run = self.subject.run(
            replace(batch[0].rules, tasks=tuple(one.task for one in _numbered(batch)))
        )
        with self.lock:
            self.drafted += run.counters.drafted or 0
            self.accepted += run.counters.accepted or 0
            self.rounds += run.counters.rounds or 0
        for one, answer in zip(batch, run.answers, strict=True):
            one.answer = answer
            one.done.set()


def place_of(prompt: Sequence[int]) -> int:
    """By which the rows of a batch are ordered: threads bring them in any order, and prompts are
    told apart by their tokens."""
    return sum(prompt) * 1000 + len(prompt)


def _alike(batch: list[_Waiting]) -> list[list[_Waiting]]:
    """Those that end by the same rules, each in the order of their prompts' numbers, whatever the
    order the connections came in."""
    groups: dict[Inquiry, list[_Waiting]] = {}
    for one in sorted(batch, key=lambda one: one.task.index):
        groups.setdefault(one.rules, []).append(one)
    return list(groups.values())


def _numbered(batch: list[_Waiting]) -> list[_Waiting]:
    """Rows counted from 0; a sampled row keeps its number, which is its seed."""
    for place, one in enumerate(batch):
        if one.rules.temperature is None:
            one.task = replace(one.task, index=place)
    return batch


def _handler(
    batcher: RequestBatcher, server_fault: ServerFault, decode: Callable[[list[int]], str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(Response(status=200, body=_metrics(batcher).encode()))
            elif self.path == "/v1/models":
                self._send(Response(status=200, body=b'{"data": [{"id": "tiny"}]}'))
            else:
                self._send(Response(status=404, body=b"{}"))

        def do_POST(self) -> None:
            number = batcher.number()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body.get("prompt_logprobs"):
                self._send(server_fault(number, _scored(batcher, body["prompt"])))
                return
            prompt, seed, rules = read(self.path, body)
            index = place_of(prompt) if seed is None else seed
            answer = batcher.ask(Task(index=index, prompt=tuple(prompt)), rules)
            text = json.dumps(write(self.path, answer, decode)).encode()
            self._send(
                server_fault(number, Response(status=500 if answer.error else 200, body=text))
            )

        def _send(self, response: Response) -> None:
            if response.delay:
                batcher.delay(response.delay)
            declared = len(response.body) if response.declared is None else response.declared
            try:
                self.send_response(response.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(declared))
                self.end_headers()
                self.wfile.write(response.body)
            except OSError:
                return  # the other side has given up

    return Handler


def _scored(batcher: RequestBatcher, prompt: list[int]) -> Response:
    """As vLLM's `prompt_logprobs`: nothing in front of the first token; 400 without a model."""
    if batcher.subject.model is None:
        return Response(status=400, body=b"{}")
    with batcher.lock:
        tops = tops_after(batcher.subject.model, prompt)[:-1]
    lines = [
        {str(i): {"logprob": value} for i, value in zip(top.ids, top.values, strict=True)}
        for top in tops
    ]
    choice = {"index": 0, "text": "", "token_ids": [0], "prompt_logprobs": [None, *lines]}
    return Response(status=200, body=json.dumps({"choices": [choice]}).encode())


def _metrics(batcher: RequestBatcher) -> str:
    return (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        f"vllm:spec_decode_num_drafts_total {batcher.rounds}\n"
        f"vllm:spec_decode_num_draft_tokens_total {batcher.drafted}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {batcher.accepted}\n"
    )


def honest(number: int, response: Response) -> Response:
    """No fault of the server."""
    return response


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # many draws arrive at once


@contextmanager
def serving(subject: Subject, **options: Any) -> Iterator[str]:
    """As `fake_server`; yields the URL alone."""
    with fake_server(subject, **options) as server:
        yield server.url


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeServer:
    """A running server: where it is, and its batcher for a client in the same process."""

    url: str
    batcher: RequestBatcher


@contextmanager
def fake_server(
    subject: Subject,
    *,
    server_fault: ServerFault = honest,
    decode: Callable[[list[int]], str] = lambda ids: " ".join(map(str, ids)),
    quiet: float = QUIET,
    port: int = 0,
) -> Iterator[FakeServer]:
    """Serve a subject on the loopback.

    quiet: as in RequestBatcher; next to nothing where requests come one at a time
    port:  0 is any free one
    """
    batcher = RequestBatcher(subject=subject, quiet=quiet)
    server = _Server(("127.0.0.1", port), _handler(batcher, server_fault, decode))
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True),
        threading.Thread(target=batcher.work, daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield FakeServer(url=f"http://127.0.0.1:{server.server_address[1]}", batcher=batcher)
    finally:
        batcher.close()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join(PATIENCE)
