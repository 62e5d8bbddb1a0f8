"""The HTTP routes, through the real server in this process and the clients that others wrote."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn

import draftproof
from draftproof.api import Pair
from draftproof.models import demo_paths
from draftproof.server.app import App, ServerSettings

KEY = {"Authorization": "Bearer sk-test"}
PROMPTS = ["Return a new", "The iterator", "A list is", "When an exception is raised", "In the"]
NEW = 12


@pytest.fixture(scope="module")
def pair() -> Pair:
    return draftproof.load(*demo_paths(), dtype="float32")


@pytest.fixture(scope="module")
def app(pair: Pair) -> App:
    settings = ServerSettings(
        names=("demo",),
        api_keys=("sk-test",),
        engine={"max_num_seqs": 3, "max_num_batched_tokens": 64},
        max_model_len=256,
        max_waiting=40,
        max_body_bytes=100_000,
        drain_seconds=1,
    )
    return App(pair, settings)


@pytest.fixture(scope="module")
def url(app: App) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = uvicorn.Config(app.build(), host="127.0.0.1", port=port, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=30)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers=KEY, timeout=60) as client:
        yield client


def plain(pair: Pair, prompt: str, **options: Any) -> str | None:
    options = {"max_new_tokens": NEW, "num_speculative_tokens": 0} | options
    return pair.generate([prompt], **options)[0].text


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    body = {"max_tokens": NEW, "temperature": 0} | body
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def chunks_of(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_many_at_a_time_get_what_each_gets_alone(client: httpx.Client, pair: Pair) -> None:
    right = [plain(pair, prompt) for prompt in PROMPTS]

    def one(index: int) -> bool:
        prompt, wanted = PROMPTS[index % 5], right[index % 5]
        if index % 2:
            return complete(client, prompt=prompt)["choices"][0]["text"] == wanted
        body = {"prompt": prompt, "max_tokens": NEW, "temperature": 0}
        pieces = chunks_of(client, "/v1/completions", body)
        return "".join(c["choices"][0]["text"] for c in pieces) == wanted

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(32)))


def test_a_seed_gives_the_same_text_alone_and_among_others(client: httpx.Client) -> None:
    body = {"prompt": "A list is", "temperature": 0.9, "seed": 7}
    alone = complete(client, **body)["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(complete, client, prompt=p, temperature=1.1) for p in PROMPTS]
        assert complete(client, **body)["choices"][0]["text"] == alone
        drawn = others[0].result()["choices"][0]
    again = complete(client, prompt=PROMPTS[0], temperature=1.1, seed=drawn["seed"])
    assert again["choices"][0]["text"] == drawn["text"], "the seed that was drawn is reported"


def test_streams_say_what_answers_say(client: httpx.Client) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "The list"}],
        "max_tokens": NEW,
        "seed": 3,
        "n": 2,
        "logprobs": True,
        "stop": ["the"],
    }
    whole = client.post("/v1/chat/completions", json=body).json()
    pieces = chunks_of(
        client, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}
    )
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in pieces[:-1] if c["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(c["delta"].get("content", "") for c in mine)
        assert text == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]


@pytest.mark.parametrize(
    ("format_", "check"),
    [
        ({"regex": "[a-z]{3}-[0-9]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"choice": ["yes", "no", "maybe"]}, lambda text: text in ("yes", "no", "maybe")),
    ],
)
def test_structured_outputs_hold_under_speculation(
    client: httpx.Client, format_: dict[str, Any], check: Any
) -> None:
    for seed in range(4):
        answer = complete(
            client,
            prompt="Say:",
            temperature=1,
            seed=seed,
            structured_outputs=format_,
            max_tokens=30,
        )
        assert check(answer["choices"][0]["text"]), answer


def test_a_client_that_goes_away_frees_its_row(client: httpx.Client, app: App, url: str) -> None:
    body = {"prompt": "A list is", "max_tokens": 200, "ignore_eos": True, "stream": True}
    for _ in range(4):
        with (
            httpx.Client(base_url=url, headers=KEY) as mine,
            mine.stream("POST", "/v1/completions", json=body) as answer,
        ):
            next(answer.iter_lines())
    deadline = time.monotonic() + 30
    while app.service.num_open or app.service.loop.num_running:
        assert time.monotonic() < deadline, "rows of clients that are gone still run"
        time.sleep(0.02)
    assert complete(client, prompt="A list is")["choices"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "max_tokns": 3}, "max_tokns"),
        ({"prompt": "x", "max_tokens": "3"}, "max_tokens"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "max_tokens": 1000}, "max_tokens"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": "x", "use_beam_search": True}, "use_beam_search"),
        ({"prompt": "\ud800"}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "x", "structured_outputs": {"regex": "[a"}}, "response_format"),
    ],
)
def test_wrong_requests_are_400_and_named(
    client: httpx.Client, body: dict[str, Any], param: str
) -> None:
    content = json.dumps(body).encode()
    answer = client.post("/v1/completions", content=content)
    assert answer.status_code == 400, answer.text
    assert param in json.dumps(answer.json()["error"])


def test_other_refusals_have_their_codes(client: httpx.Client, url: str) -> None:
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}).status_code == 401
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.post("/v1/completions", content=b"{" * 200_000).status_code == 413
    assert client.post("/v1/completions", content=b"{bad").status_code == 400
    unknown = client.post("/v1/completions", json={"prompt": "x", "model": "other"})
    assert unknown.status_code == 404
    assert "x-request-id" in unknown.headers


def test_a_full_queue_is_429(client: httpx.Client, app: App) -> None:
    body = {"prompt": PROMPTS * 2, "n": 5, "temperature": 1, "max_tokens": 4}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 429
    assert answer.headers["retry-after"]


def test_words_and_pages(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "A list is"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "A list is"}
    assert client.get("/v1/models").json()["data"][0]["id"] == "demo"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    assert client.get("/version").json()["version"] == draftproof.__version__
    complete(client, prompt="A list is")
    text = client.get("/metrics").text
    assert "draftproof:spec_decode_num_accepted_tokens_total" in text
    assert 'draftproof:num_requests_running{model_name="demo"} 0.0' in text


def test_the_openai_client(url: str, pair: Pair) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test")
    found = client.completions.create(
        model="demo", prompt="A list is", max_tokens=NEW, temperature=0
    )
    assert found.choices[0].text == plain(pair, "A list is")
    stream = client.completions.create(
        model="demo", prompt="A list is", max_tokens=NEW, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == found.choices[0].text
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.completions.create(model="demo", prompt="x", top_p=3)

    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test") as own:
            made = [
                own.completions.create(model="demo", prompt=p, max_tokens=NEW, temperature=0)
                for p in PROMPTS
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*made)]

    assert asyncio.run(several()) == [plain(pair, prompt) for prompt in PROMPTS]
