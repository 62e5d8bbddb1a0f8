"""A small server on the loopback around any subject, to try the HTTP path with known faults.

It speaks the formats of vLLM, SGLang and llama.cpp and plain OpenAI completions, well enough for
`HttpSubject`; it is a test double, not a way to serve.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from draftproof.forensics.scoring import tops_after
from draftproof.forensics.subjects.base import TOP, Answer, Inquiry, Subject, Task

QUIET = 0.15  # seconds; see Desk
PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What goes over the wire, before anything is done to it."""

    status: int
    body: bytes
    delay: float = 0.0
    declared: int | None = None  # Content-Length, where it is to lie


Mischief = Callable[[int, Response], Response]  # told the number of the request, from 0


@dataclass(kw_only=True)
class _Waiting:
    task: Task
    rules: Inquiry
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer = field(default_factory=lambda: Answer(error="not answered"))


@dataclass(kw_only=True)
class Desk:
    """Takes requests from many connections and answers those that came together as one batch.

    quiet: seconds without a new request after which those waiting are answered
    """

    subject: Subject
    quiet: float = QUIET
    waiting: list[_Waiting] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    last: float = 0.0
    closed: threading.Event = field(default_factory=threading.Event)

    def ask(self, task: Task, rules: Inquiry) -> Answer:
        """Wait for the batch this request falls into."""
        mine = _Waiting(task=task, rules=rules)
        with self.lock:
            self.waiting.append(mine)
            self.last = time.monotonic()
        mine.done.wait(PATIENCE)
        return mine.answer

    def number(self) -> int:
        """Count a request."""
        with self.lock:
            self.requests += 1
            return self.requests - 1

    def work(self) -> None:
        """Answer batch after batch until closed."""
        while not self.closed.wait(self.quiet / 5):
            with self.lock:
                ready = bool(self.waiting) and time.monotonic() - self.last > self.quiet
                batch, self.waiting = (self.waiting, []) if ready else ([], self.waiting)
            if batch:
                self._answer(batch)

    def _answer(self, batch: list[_Waiting]) -> None:
        # whatever order the connections came in, rows keep the order of their prompts' numbers
        batch.sort(key=lambda one: one.task.index)
        tasks = tuple(Task(index=i, prompt=one.task.prompt) for i, one in enumerate(batch))
        rules = batch[0].rules
        asked = Inquiry(
            tasks=tasks,
            max_new_tokens=rules.max_new_tokens,
            min_new_tokens=rules.min_new_tokens,
            eos_token_id=rules.eos_token_id,
            stop_strings=rules.stop_strings,
        )
        run = self.subject.run(asked)
        with self.lock:
            self.drafted += run.counters.drafted or 0
            self.accepted += run.counters.accepted or 0
            self.rounds += run.counters.rounds or 0
        for one, answer in zip(batch, run.answers, strict=True):
            one.answer = answer
            one.done.set()


# -- formats ---------------------------------------------------------------------------------------


def _rules(body: dict[str, Any], names: dict[str, str]) -> Inquiry:
    ends = body.get(names["eos"]) or ()
    return Inquiry(
        tasks=(),
        max_new_tokens=int(body.get(names["max"], 16)),
        min_new_tokens=int(body.get(names["min"], 0)),
        eos_token_id=() if body.get("ignore_eos") else tuple(ends) if ends else None,
        stop_strings=tuple(body.get("stop") or ()),
    )


VLLM = {"max": "max_tokens", "min": "min_tokens", "eos": "stop_token_ids"}
SGLANG = {"max": "max_new_tokens", "min": "min_new_tokens", "eos": "stop_token_ids"}
LLAMA = {"max": "n_predict", "min": "min_tokens", "eos": "eos"}


def _read(path: str, body: dict[str, Any]) -> tuple[list[int], Inquiry]:
    if path == "/v1/completions":
        return body["prompt"], _rules(body, VLLM)
    if path == "/generate":
        return body["input_ids"], _rules(body["sampling_params"], SGLANG)
    return body["prompt"], _rules(body, LLAMA)


def _write(path: str, answer: Answer, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    ids = list(answer.ids)
    listed = [list(zip(top.ids, top.values, strict=True))[:TOP] for top in answer.tops]
    if path == "/v1/completions":
        named = [{f"token_id:{i}": value for i, value in pairs} for pairs in listed]
        choice = {
            "index": 0,
            "text": decode(ids),
            "token_ids": ids,
            "logprobs": {"top_logprobs": named},
            "finish_reason": answer.finish_reason,
        }
        return {"object": "text_completion", "choices": [choice]}
    drafted = sum(len(one.drafts) for one in answer.rounds)
    if path == "/generate":
        raw = [[[value, i, None] for i, value in pairs] for pairs in listed]
        meta = {
            "output_top_logprobs": raw,
            "finish_reason": {"type": answer.finish_reason},
            "spec_verify_ct": sum(1 for one in answer.rounds if one.drafts),
            "spec_draft_token_num": drafted,
        }
        return {"output_ids": ids, "meta_info": meta}
    probabilities = [
        {"top_logprobs": [{"id": i, "logprob": value} for i, value in pairs]} for pairs in listed
    ]
    accepted = sum(one.accepted for one in answer.rounds)
    timings = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {"predicted_n": 1}
    return {
        "tokens": ids,
        "stop_type": answer.finish_reason,
        "completion_probabilities": probabilities,
        "timings": timings,
    }


def _handler(
    desk: Desk, mischief: Mischief, decode: Callable[[list[int]], str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(Response(status=200, body=_metrics(desk).encode()))
            elif self.path == "/v1/models":
                self._send(Response(status=200, body=b'{"data": [{"id": "tiny"}]}'))
            else:
                self._send(Response(status=404, body=b"{}"))

        def do_POST(self) -> None:
            number = desk.number()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body.get("prompt_logprobs"):
                self._send(mischief(number, _scored(desk, body["prompt"])))
                return
            prompt, rules = _read(self.path, body)
            # prompts are told apart by their tokens: rows keep an order that threads do not change
            answer = desk.ask(
                Task(index=sum(prompt) * 1000 + len(prompt), prompt=tuple(prompt)), rules
            )
            text = json.dumps(_write(self.path, answer, decode)).encode()
            self._send(mischief(number, Response(status=500 if answer.error else 200, body=text)))

        def _send(self, response: Response) -> None:
            if response.delay:
                desk.closed.wait(response.delay)
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


def _scored(desk: Desk, prompt: list[int]) -> Response:
    """As vLLM's `prompt_logprobs`: nothing in front of the first token; 400 without a model."""
    if desk.subject.model is None:
        return Response(status=400, body=b"{}")
    with desk.lock:
        tops = tops_after(desk.subject.model, prompt)[:-1]
    lines = [
        {str(i): {"logprob": value} for i, value in zip(top.ids, top.values, strict=True)}
        for top in tops
    ]
    choice = {"index": 0, "text": "", "token_ids": [0], "prompt_logprobs": [None, *lines]}
    return Response(status=200, body=json.dumps({"choices": [choice]}).encode())


def _metrics(desk: Desk) -> str:
    return (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        f"vllm:spec_decode_num_drafts_total {desk.rounds}\n"
        f"vllm:spec_decode_num_draft_tokens_total {desk.drafted}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {desk.accepted}\n"
    )


def honest(number: int, response: Response) -> Response:
    """No mischief."""
    return response


@contextmanager
def serving(
    subject: Subject,
    *,
    mischief: Mischief = honest,
    decode: Callable[[list[int]], str] = lambda ids: " ".join(map(str, ids)),
    quiet: float = QUIET,
) -> Iterator[str]:
    """Serve a subject on a free port of the loopback; yields the URL.

    quiet: as in Desk; next to nothing where requests come one at a time
    """
    desk = Desk(subject=subject, quiet=quiet)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(desk, mischief, decode))
    server.daemon_threads = True
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True),
        threading.Thread(target=desk.work, daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        desk.closed.set()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join(PATIENCE)


# -- mischief --------------------------------------------------------------------------------------


def hangs(seconds: float, first: int = 0) -> Mischief:
    """Answers late, from a request on."""
    return lambda number, r: (
        r if number < first else Response(status=r.status, body=r.body, delay=seconds)
    )


def breaks(first: int = 0) -> Mischief:
    """Answers 500, from a request on."""
    return lambda number, r: r if number < first else Response(status=500, body=b"{}")


def truncates(first: int = 0) -> Mischief:
    """Closes the connection in the middle of a response."""
    return lambda number, r: (
        r
        if number < first
        else Response(status=200, body=r.body[: len(r.body) // 2], declared=len(r.body))
    )


def fickle(number: int, response: Response) -> Response:
    """Another answer every time: a token that depends on the number of the request."""
    body = json.loads(response.body)
    choice = body["choices"][0]
    choice["token_ids"] = [(i + number * 7) % 50 for i in choice["token_ids"]]
    choice["logprobs"] = None
    return Response(status=200, body=json.dumps(body).encode())
