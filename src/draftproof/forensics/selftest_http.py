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

from draftproof.forensics.faults import Fault, Scene
from draftproof.forensics.stages import NEW, Stage
from draftproof.forensics.trials import Trial, tried
from draftproof.forensics.verdicts import Kind

if TYPE_CHECKING:
    from draftproof.forensics.subjects.http import HttpSubject

FORMATS = ("vllm", "sglang", "llama.cpp")
LONG = 40  # tokens that it takes a drifting draft cache to show in the counters
DRAWS, TOGETHER = 1000, 100  # sampled rows, and how many of them at a time
QUICK = (Scene.PLAIN, Scene.EOS, Scene.STOP, Scene.MINIMUM)
SLOW = (Scene.MARKED, Scene.WINDOW, Scene.SAMPLING)


def why_not() -> str | None:
    """What is missing here, in words."""
    return None if find_spec("httpx") else "over HTTP: httpx is not installed"


@contextmanager
def behind_a_server(stage: Stage, fault: Fault | None, kind: str = "vllm") -> Iterator[HttpSubject]:
    """The stage's candidate as a client of a server of one format sees it."""
    from draftproof.forensics.serving import serving
    from draftproof.forensics.subjects.dialects import LlamaCpp, Sglang, Vllm
    from draftproof.forensics.subjects.http import HttpSubject

    dialects: dict[str, Any] = {"vllm": Vllm(), "sglang": Sglang(), "llama.cpp": LlamaCpp()}
    with serving(stage.candidate(fault)) as url:
        yield HttpSubject(
            name=url,
            url=url,
            dialect=dialects[kind],
            batch=stage.batch,
            k=stage.k,
            dtype="float32",
        )


def fault_trial(stage: Stage, fault: Fault) -> Trial:
    """What a fault behind a server is taken for."""
    asked = suited(stage, fault, fault.scene)
    with behind_a_server(asked, fault) as candidate:
        return tried(
            name=fault.name,
            stage=f"{stage.name}, http",
            expected=fault.kind,
            reference=asked.reference(),
            candidate=candidate,
            inquiry=asked.inquiry,
        )


def suited(stage: Stage, fault: Fault | None, scene: Scene) -> Stage:
    """Longer rows where counters are all that shows, fewer draws where each is a request."""
    inquiry = stage.inquiry
    if fault is not None and fault.kind is Kind.DRAFT_CACHE:
        return replace(stage, inquiry=replace(inquiry, max_new_tokens=max(LONG, NEW)))
    if scene is Scene.SAMPLING:
        tasks = inquiry.tasks[:DRAWS]
        return replace(stage, batch=TOGETHER, inquiry=replace(inquiry, tasks=tasks))
    return stage


def fault_trials(
    maker: Callable[[Scene], Stage | None], faults: Sequence[Fault]
) -> Iterator[Trial]:
    """Every fault that a stage has a scene for."""
    stage_of = cache(maker)
    for fault in faults:
        stage = stage_of(fault.scene)
        if stage is not None:
            yield fault_trial(stage, fault)


def correct_trials(
    maker: Callable[[Scene], Stage | None], *, quick: bool = True
) -> Iterator[Trial]:
    """Correct servers: every format, and every scene in the first of them."""
    asked = [(Scene.PLAIN, kind) for kind in FORMATS[1:]]
    asked += [(scene, FORMATS[0]) for scene in (QUICK if quick else (*QUICK, *SLOW))]
    for scene, kind in asked:
        found = maker(scene)
        if found is None:
            continue
        stage = suited(found, None, scene)
        with behind_a_server(stage, None, kind) as candidate:
            yield tried(
                name=f"float32, fast, rows, {kind}, {scene.value}",
                stage=f"{stage.name}, http",
                expected=None,
                reference=stage.reference(),
                candidate=candidate,
                inquiry=stage.inquiry,
            )
