"""The long form of `draftproof check`: two SPECs, an examination, its reports."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from draftproof.cli.console import note, put, stderr, stdout
from draftproof.cli.options import DecodingOptions, ModelOptions
from draftproof.cli.prompts import PromptItem
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.forensics.examine import Examination
    from draftproof.forensics.subjects.base import Inquiry, Subject, Task

FAR_BEYOND = 1_000_000  # vocabulary size where nobody knows it


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where reports go; - is stdout, for JSON only."""

    json: str | None = None
    html: Path | None = None
    junit: Path | None = None
    bundle: Path | None = None

    @property
    def examined(self) -> bool:
        """Whether one of them needs an examination."""
        return any((self.html, self.junit, self.bundle))


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be examined, and how thoroughly.

    eos_token_id: ends a row on both sides; None leaves each to its own
    """

    reference: str
    candidate: str
    decoding: DecodingOptions
    controls: str = "auto"
    policy: Path | None = None
    tokenizer: str | None = None
    eos_token_id: tuple[int, ...] | None = None


def as_question(
    models: ModelOptions, decoding: DecodingOptions, batch: int, controls: str, policy: Path | None
) -> Question:
    """The short form in the words of the long one."""
    from draftproof.forensics.subjects.spec import escaped

    common = f"target={escaped(models.target)},dtype={models.dtype},device={models.device}"
    numerics = f"numerics={models.numerics},method={models.method}"
    draft = "ngram" if models.ngram else models.draft
    drafted = (
        "" if draft is None else f",draft={escaped(draft)},k={decoding.num_speculative_tokens}"
    )
    drafted += f",draft_executor={models.draft_executor}" if models.draft_executor else ""
    settings = "".join(f",{key}={value}" for key, value in (models.executor_options or {}).items())
    if models.executor == "torch":
        drafted += settings  # they are the draft's, and the reference has none
    else:
        common += f",executor={models.executor}{settings}"
    return Question(
        reference=f"engine:{common},numerics={models.numerics},batch=1",
        candidate=f"engine:{common},{numerics},batch={batch}{drafted}",
        decoding=decoding,
        controls=controls,
        policy=policy,
    )


def run_examination(question: Question, items: Sequence[PromptItem], outputs: Outputs) -> int:
    """Examine, print, write; returns the exit code.

    Raises InputError when a SPEC, the policy or a prompt cannot be used.
    """
    from draftproof.forensics.examine import Controls, examine
    from draftproof.forensics.policy import Policy
    from draftproof.forensics.subjects.spec import parse

    if question.controls not in tuple(Controls):
        raise InputError(f"--controls {question.controls}: choose one of {', '.join(Controls)}")
    policy = Policy() if question.policy is None else Policy.read(question.policy)
    reference, candidate = parse(question.reference), parse(question.candidate)
    tokenizer = _tokenizer(question.tokenizer, reference, candidate)
    examination = examine(
        reference,
        candidate,
        _inquiry(items, question, tokenizer),
        which=Controls(question.controls),
        policy=policy,
        decode=_decoder(tokenizer),
    )
    report = examination.as_dict()
    _print(report, to_stderr=outputs.json == "-")
    write(examination, report, outputs)
    return int(examination.exit_code)


def _tokenizer(name: str | None, *subjects: Subject) -> Any:
    if name is not None:
        from draftproof.forensics.subjects.spec import open_tokenizer

        return open_tokenizer(name)
    found = [getattr(subject, "tokenizer", None) for subject in subjects]
    return next((tokenizer for tokenizer in found if tokenizer is not None), None)


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str] | None:
    if tokenizer is None:
        return None
    return lambda ids: str(tokenizer.decode(list(ids)))


def _inquiry(items: Sequence[PromptItem], question: Question, tokenizer: Any) -> Inquiry:
    from draftproof.forensics.subjects.base import Inquiry

    decoding = question.decoding
    bad = [item for item in items if item.error is not None]
    if bad:
        raise InputError(f"{bad[0].source}: {bad[0].error}; leave such prompts out")
    if own := [item for item in items if item.max_new_tokens is not None]:
        raise InputError(f"{own[0].source}: max_tokens: all prompts have --max-new-tokens here")
    return Inquiry(
        tasks=tuple(_task(index, item, tokenizer) for index, item in enumerate(items)),
        max_new_tokens=decoding.max_new_tokens,
        min_new_tokens=decoding.min_new_tokens,
        eos_token_id=question.eos_token_id,
        stop_strings=tuple(decoding.stop_strings),
    )


def _task(index: int, item: PromptItem, tokenizer: Any) -> Task:
    """With ids where a tokenizer is at hand; servers that tokenise get the text."""
    from draftproof.forensics.subjects.base import Task
    from draftproof.text import encode

    category = str(item.labels.get("category", ""))
    text = item.prompt if isinstance(item.prompt, str) else None
    if tokenizer is None and text is not None:
        return Task(index=index, text=text, category=category)
    assert item.prompt is not None
    size = FAR_BEYOND if tokenizer is None else len(tokenizer)
    try:
        ids = tuple(encode(tokenizer, item.prompt, size))
    except InputError as error:
        raise InputError(f"{item.source}: {error}") from error
    return Task(index=index, prompt=ids, text=text, category=category)


def write(examination: Examination, report: dict[str, Any], outputs: Outputs) -> None:
    """Every report asked for."""
    from draftproof.forensics import bundle, junit

    text = jsonlib.dumps(report, indent=2)
    if outputs.json == "-":
        put(text)
    elif outputs.json is not None:
        Path(outputs.json).write_text(text + "\n", encoding="utf-8")
    if outputs.html is not None:
        from draftproof.forensics.report import render

        outputs.html.write_text(render(report), encoding="utf-8")
        note(f"report: {outputs.html}")
    if outputs.junit is not None:
        outputs.junit.write_text(junit.render(report), encoding="utf-8")
    if outputs.bundle is not None:
        bundle.write(examination, outputs.bundle)
        note(f"bundle: {outputs.bundle}; draftproof replay {outputs.bundle} shows the first fork")


def _print(report: dict[str, Any], *, to_stderr: bool) -> None:
    console = stderr() if to_stderr else stdout()
    verdict, match = report["verdict"], report["match"]
    kind = f" ({verdict['kind']})" if verdict["kind"] else ""
    console.print(f"{verdict['cause'].upper()}{kind}: {verdict['rule']}", markup=False)
    for reason in verdict["reasons"]:
        console.print(f"  - {reason}", markup=False, soft_wrap=True)
    for one in verdict["missing"]:
        console.print(f"  missing: {one}", markup=False, soft_wrap=True)
    for one in report["policy"]["broken"]:
        console.print(f"  policy: {one}", markup=False, soft_wrap=True)
    _print_first_fork(console, report)
    if not match["rows"]:
        console.print("no row was answered by both sides: nothing could be compared")
        return
    low, high = match["interval"]
    console.print(
        f"exact {match['exact']}/{match['rows']} (95%: {low:.1%} to {high:.1%}), "
        f"partial {match['partial']:.1%}, speculation {_speculation(report)}",
        markup=False,
        soft_wrap=True,
    )
    if report["controls"]:
        console.print(_table(report["controls"]))


def _print_first_fork(console: Console, report: dict[str, Any]) -> None:
    """The gravest row that forks first, with tokens and text, as the HTML report shows it."""
    rows = [row for row in report["rows"] if row["fork"] is not None]
    if not rows:
        return
    same = [row for row in rows if row["verdict"]["cause"] == report["verdict"]["cause"]]
    row = min(same or rows, key=lambda one: one["fork"]["position"])
    fork = row["fork"]
    console.print(f"first fork: row {row['index']}, token {fork['position']}", markup=False)
    for name, key in (
        ("before", "before"),
        *((s, f"{s}_after") for s in ("reference", "candidate")),
    ):
        ids = " ".join(str(one["id"]) for one in fork[key]) or "the end"
        text = "".join(one["text"] or "" for one in fork[key])
        told = f"{ids}  {text!r}" if text else ids
        console.print(f"  {name:<9}  {told}", markup=False, soft_wrap=True)


def _speculation(report: dict[str, Any]) -> str:
    told = report["speculation"]
    if told["on"] is None:
        return f"unknown ({told['source']})"
    rate = "" if told["acceptance"] is None else f", acceptance {told['acceptance']:.1%}"
    return ("on" if told["on"] else "off") + rate


def _table(controls: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="controls")
    for name, side in (("control", "left"), ("changes", "left"), ("rows", "right")):
        table.add_column(name, justify="left" if side == "left" else "right")
    table.add_column("differ", justify="right")
    table.add_column("beyond noise", justify="right")
    for one in controls:
        if one["ran"]:
            cells = [str(one[key]) for key in ("rows", "differing", "beyond_noise")]
            table.add_row(one["name"], one["purpose"], *cells)
    return table
