"""The candidate of a case as it is seen from its vantage point."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftproof.faultlab.generated.cases import GeneratedCase, Vantage
from draftproof.forensics.subjects.base import Inquiry, Subject
from draftproof.forensics.subjects.file import FileSubject


def why_not() -> str | None:
    """What is missing here for servers, in words."""
    return None if find_spec("httpx") else "over HTTP: httpx is not installed"


@contextmanager
def seen(case: GeneratedCase) -> Iterator[Subject]:
    """A subject that can be asked for what the vantage point offers."""
    if case.vantage is Vantage.ENGINE:
        yield case.candidate()
    elif case.vantage is Vantage.FILE:
        with tempfile.TemporaryDirectory() as folder:
            yield _recorded(case.candidate(), case.inquiry, Path(folder) / "answers.jsonl")
    else:
        with _served(case) as subject:
            yield subject


def _recorded(subject: Subject, inquiry: Inquiry, path: Path) -> FileSubject:
    """One run, written as `draftproof generate` writes it."""
    run = subject.run(inquiry)
    rows = zip(inquiry.tasks, run.answers, strict=True)
    lines = [
        json.dumps({"index": t.index, "token_ids": a.ids, "finish_reason": a.finish_reason})
        for t, a in rows
    ]
    path.write_text("".join(f"{line}\n" for line in reversed(lines)), encoding="utf-8")
    return FileSubject(name=f"file:{path}", path=path)


@contextmanager
def _served(case: GeneratedCase) -> Iterator[Subject]:
    from draftproof.faultlab.fake_client import FakeServerClient
    from draftproof.faultlab.fake_server import fake_server
    from draftproof.forensics.subjects.dialects import LlamaCpp, Sglang, Vllm

    dialects: dict[Vantage, Any] = {
        Vantage.VLLM: Vllm(),
        Vantage.SGLANG: Sglang(),
        Vantage.LLAMA: LlamaCpp(),
    }
    with fake_server(case.candidate()) as server:
        yield FakeServerClient(
            name=server.url,
            url=server.url,
            batcher=server.batcher,
            dialect=dialects[case.vantage],
            batch=case.batch,
            k=case.k,
            dtype=case.dtype,
        )
