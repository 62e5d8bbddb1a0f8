"""The proof from outside: every fault behind a server, which can be asked for much less.

The candidate is reached over HTTP alone: no drafts can be handed to it, no other K, and nothing of
its rounds is seen. The reference has the same weights in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from draftproof.faultlab.faults import Condition, Fault
from draftproof.faultlab.scenarios import NEW, Scenario
from draftproof.faultlab.selftest_case import Case, examined
from draftproof.forensics.verdicts import Kind

if TYPE_CHECKING:
    from draftproof.forensics.subjects.http import HttpSubject

FORMATS = ("vllm", "sglang", "llama.cpp")
LONG = 40  # tokens that it takes a drifting draft cache to show in the counters
DRAWS, TOGETHER = 1000, 100  # sampled rows, and how many of them at a time
QUICK = (Condition.PLAIN, Condition.EOS, Condition.STOP, Condition.MINIMUM)
SLOW = (Condition.MARKED, Condition.WINDOW, Condition.SAMPLING)


def why_not() -> str | None:
    """What is missing here, in words."""
    return None if find_spec("httpx") else "over HTTP: httpx is not installed"


@contextmanager
def behind_a_server(
    scenario: Scenario, fault: Fault | None, kind: str = "vllm"
) -> Iterator[HttpSubject]:
    """The scenario's candidate as a client of a server of one format sees it."""
    from draftproof.faultlab.fake_client import FakeServerClient
    from draftproof.faultlab.fake_server import fake_server
    from draftproof.forensics.subjects.dialects import LlamaCpp, Sglang, Vllm

    dialects: dict[str, Any] = {"vllm": Vllm(), "sglang": Sglang(), "llama.cpp": LlamaCpp()}
    with fake_server(scenario.candidate(fault)) as server:
        yield FakeServerClient(
            name=server.url,
            url=server.url,
            batcher=server.batcher,
            dialect=dialects[kind],
            batch=scenario.batch,
            k=scenario.k,
            dtype="float32",
        )


def fault_case(scenario: Scenario, fault: Fault) -> Case:
    """What a fault behind a server is taken for."""
    asked = suited(scenario, fault, fault.condition)
    with behind_a_server(asked, fault) as candidate:
        return examined(
            name=fault.name,
            scenario=f"{scenario.name}, http",
            expected=fault.kind,
            reference=asked.reference(),
            candidate=candidate,
            inquiry=asked.inquiry,
        )


def suited(scenario: Scenario, fault: Fault | None, condition: Condition) -> Scenario:
    """Longer rows where counters are all that shows, fewer draws where each is a request."""
    inquiry = scenario.inquiry
    if fault is not None and fault.kind is Kind.DRAFT_CACHE:
        return replace(scenario, inquiry=replace(inquiry, max_new_tokens=max(LONG, NEW)))
    if condition is Condition.SAMPLING:
        tasks = inquiry.tasks[:DRAWS]
        return replace(scenario, batch=TOGETHER, inquiry=replace(inquiry, tasks=tasks))
    return scenario


def fault_cases(
    maker: Callable[[Condition], Scenario | None], faults: Sequence[Fault]
) -> Iterator[Case]:
    """Every fault that a scenario has a condition for."""
    scenario_of = cache(maker)
    for fault in faults:
        scenario = scenario_of(fault.condition)
        if scenario is not None:
            yield fault_case(scenario, fault)


def correct_cases(
    maker: Callable[[Condition], Scenario | None], *, quick: bool = True
) -> Iterator[Case]:
    """Correct servers: every format, and every condition in the first of them."""
    asked = [(Condition.PLAIN, kind) for kind in FORMATS[1:]]
    asked += [(condition, FORMATS[0]) for condition in (QUICK if quick else (*QUICK, *SLOW))]
    for condition, kind in asked:
        found = maker(condition)
        if found is None:
            continue
        scenario = suited(found, None, condition)
        with behind_a_server(scenario, None, kind) as candidate:
            yield examined(
                name=f"float32, fast, rows, {kind}, {condition.value}",
                scenario=f"{scenario.name}, http",
                expected=None,
                reference=scenario.reference(),
                candidate=candidate,
                inquiry=scenario.inquiry,
            )
