"""The engine's thread: requests come and go, and one that fails takes nobody with it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

import draftproof
from draftproof.api import Pair
from draftproof.batch import Request
from draftproof.models import demo_paths
from draftproof.online import open_engine, requests_of
from draftproof.server.loop import EngineLoop, EngineStoppedError, Update

PROMPTS = [
    "Return a new",
    "The iterator",
    "When an exception is raised inside a function, the interpreter looks for the handler",
    "When an exception is raised inside a function, the interpreter looks for a file",
    "A list is",
]
NEW = 12


@pytest.fixture(scope="module")
def pair() -> Pair:
    return draftproof.load(*demo_paths(), dtype="float32")


@pytest.fixture(scope="module")
def alone(pair: Pair) -> list[list[int]]:
    return [pair.generate([prompt], max_new_tokens=NEW)[0].token_ids for prompt in PROMPTS]


class Driver:
    """Runs a loop and collects what it hands out."""

    def __init__(self, pair: Pair, **options: Any) -> None:
        self.pair, self.inbox = pair, queue.SimpleQueue[Update]()
        limit = options.pop("max_kv_tokens", None)
        options["max_model_len"] = 128
        engine = open_engine(pair, options, max_kv_tokens=limit)  # type: ignore[arg-type]
        self.loop = EngineLoop(engine=engine, listener=self._listen)
        self.next = 0

    def _listen(self, updates: list[Update]) -> None:
        for update in updates:
            self.inbox.put(update)

    def submit(self, prompts: Sequence[str], **options: Any) -> list[int]:
        made: list[Request] = requests_of(
            self.pair,
            prompts,
            {"max_new_tokens": NEW, **options},  # type: ignore[typeddict-item]
        )
        numbered = [replace(r, index=self.next + place) for place, r in enumerate(made)]
        self.next += len(made)
        self.loop.submit(numbered)
        return [request.index for request in numbered]

    def collect(self, count: int) -> tuple[dict[int, list[int]], dict[int, Exception]]:
        """Ids and errors by index, until `count` requests have ended."""
        ids: dict[int, list[int]] = {}
        errors: dict[int, Exception] = {}
        while count:
            update = self.inbox.get(timeout=60)
            ids.setdefault(update.index, []).extend(update.token_ids)
            count -= update.final
            if update.error is not None:
                errors[update.index] = update.error
        return ids, errors


@pytest.fixture
def driver(pair: Pair) -> Iterator[Driver]:
    driver = Driver(pair, max_num_seqs=3)
    driver.loop.start()
    yield driver
    driver.loop.stop(timeout=30)
    assert not driver.loop.alive


def test_requests_that_come_while_others_run_are_what_they_are_alone(
    driver: Driver, alone: list[list[int]]
) -> None:
    first = driver.submit(PROMPTS[:2])
    driver.inbox.put(driver.inbox.get(timeout=60))  # they are running
    second = driver.submit(PROMPTS[2:])
    ids, errors = driver.collect(len(PROMPTS))
    assert not errors
    assert [ids[index] for index in [*first, *second]] == alone


def test_a_request_of_one_token_ends(driver: Driver, pair: Pair) -> None:
    one = requests_of(pair, ["Return a new"], {"max_new_tokens": 1})
    driver.loop.submit(one)
    update = driver.inbox.get(timeout=60)
    assert update.final
    assert len(update.token_ids) == 1


def test_an_aborted_request_gives_its_row_to_the_next(
    driver: Driver, alone: list[list[int]]
) -> None:
    gone = driver.submit(PROMPTS[:3])  # all rows
    driver.inbox.get(timeout=60)
    driver.loop.abort(gone)
    left = driver.submit(PROMPTS)
    ids, _ = driver.collect(len(PROMPTS))
    assert [ids[index] for index in left] == alone
    assert not driver.loop.engine.batch.rows


class Fails:
    """A processor that raises when it has seen `after` calls."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if self.after == 0:
            raise RuntimeError("out of order")
        self.after -= 1
        return scores


@pytest.mark.parametrize("after", [0, 3])
def test_a_request_that_fails_fails_alone(
    driver: Driver, alone: list[list[int]], after: int
) -> None:
    good = driver.submit(PROMPTS[2:4])
    (bad,) = driver.submit(PROMPTS[:1], logits_processor=[Fails(after)])
    more = driver.submit(PROMPTS[2:])
    ids, errors = driver.collect(6)
    assert list(errors) == [bad]
    assert "out of order" in str(errors[bad])
    assert [ids[index] for index in [*good, *more]] == [*alone[2:4], *alone[2:]]


def test_rows_that_wait_for_the_failing_one_to_read_their_beginning_go_on(driver: Driver) -> None:
    long = "When an exception is raised inside a function, the interpreter looks for " * 8
    (wanted,) = driver.pair.generate([long + "it"], max_new_tokens=NEW)
    (bad,) = driver.submit([long + "the"], logits_processor=[Fails(0)])
    (good,) = driver.submit([long + "it"])
    ids, errors = driver.collect(2)
    assert list(errors) == [bad]
    assert ids[good] == wanted.token_ids


def test_a_round_that_failed_once_is_repeated(driver: Driver, alone: list[list[int]]) -> None:
    engine = driver.loop.engine
    forward, left = engine.target.forward, [0, 1, 1]

    def flaky(tokens: Any) -> Tensor:
        logits = forward(tokens)
        if left and left.pop():
            raise MemoryError("no room")
        return logits

    engine.target.forward = flaky  # type: ignore[method-assign]
    wanted = driver.submit(PROMPTS[:3])
    ids, errors = driver.collect(3)
    assert len(errors) <= 1  # the second failure hit one row that ran alone
    for index, right in zip(wanted, alone, strict=False):
        assert index in errors or ids[index] == right


def test_requests_wait_until_the_cache_holds_them_to_their_end(
    pair: Pair, alone: list[list[int]]
) -> None:
    driver = Driver(pair, max_num_seqs=3, max_kv_tokens=40)
    engine, most = driver.loop.engine, 0
    forward = engine.target.forward

    def watching(tokens: Any) -> Tensor:
        nonlocal most
        most = max(most, sum(row.request.most_tokens for row in engine.batch))
        return forward(tokens)

    engine.target.forward = watching  # type: ignore[method-assign]
    driver.loop.start()
    wanted = driver.submit(PROMPTS)
    ids, _ = driver.collect(len(PROMPTS))
    driver.loop.stop(timeout=30)
    assert [ids[index] for index in wanted] == alone
    assert most <= 40


def test_everybody_is_told_when_the_engine_itself_stops(pair: Pair) -> None:
    driver = Driver(pair, max_num_seqs=2)

    def broken() -> None:
        raise InterruptedError

    driver.loop.engine.restore = broken  # type: ignore[method-assign]
    driver.loop.engine.step = broken  # type: ignore[method-assign, assignment]
    driver.submit(PROMPTS[:3])
    driver.loop.start()
    _, errors = driver.collect(3)
    driver.loop.stop(timeout=30)
    assert len(errors) == 3
    assert all(isinstance(error, EngineStoppedError) for error in errors.values())
    assert not driver.loop.alive
