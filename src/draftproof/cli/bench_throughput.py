"""`draftproof bench throughput` and `bench scaling`: speed, beside other libraries and in parts."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, note, reports_errors
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.bench.runner import Runner
    from draftproof.bench.throughput import Grid
    from draftproof.bench.workloads import Question


def _option(name: str, help: str) -> Any:  # noqa: A002 (typer's name)
    return typer.Option(name, help=help)


Target = Annotated[
    str | None,
    typer.Option("--target", "--model", help="A folder or a hub id. Default: demo pair."),
]
Draft = Annotated[str | None, _option("--draft", 'A folder, a hub id, or "ngram".')]
Input = Annotated[
    Path | None, _option("--input", "Spec-Bench question.jsonl. Default: built-in prompts.")
]
Numbers = Annotated[str, _option("--batch-sizes", "Separated by commas.")]
Drafts = Annotated[
    str,
    _option("--num-speculative-tokens", "K, or auto; several with commas. Plain is always run."),
]
Tiers = Annotated[str, _option("--numerics", "exact, fast, or both with a comma.")]
Dtype = Annotated[str | None, _option("--dtype", "Default: bfloat16; float32 for the demo pair.")]
Count = Annotated[int | None, _option("--num-prompts", "Prompts. Default: 24, or all there are.")]
NewTokens = Annotated[int | None, _option("--max-new-tokens", "Tokens per prompt. Default: 48.")]
Quick = Annotated[bool, _option("--quick", "A few prompts, to see that it works.")]


@reports_errors
def throughput(
    target: Target = None,
    draft: Draft = None,
    input: Input = None,
    batch_sizes: Numbers = "1,4,8",
    num_speculative_tokens: Drafts = "auto,4",
    numerics: Tiers = "exact,fast",
    method: opt.Method = "rows",
    dtype: Dtype = None,
    device: opt.Device = "cpu",
    max_new_tokens: NewTokens = None,
    num_prompts: Count = None,
    peers: Annotated[
        Path | None, _option("--peers", "Folder of the peers' scripts, run_NAME.py.")
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        _option("--peer-python", "NAME=PYTHON of a peer's own environment; several times."),
    ] = None,
    output: Annotated[Path, _option("--output", "Folder for results and report.")] = Path(
        "bench-throughput"
    ),
    quick: Quick = False,
    json: opt.JsonFlag = False,
) -> None:
    """Tokens per second of plain and speculative decoding, ours and other libraries'.

    Writes results.jsonl, peers.jsonl, report.md and plots. The same command goes on where an
    interrupted one stopped; peers are always run anew.

    Exit codes: 0 all runs finished, 1 some failed, 2 nothing could be done as asked.
    """
    from draftproof.bench import throughput_report as report
    from draftproof.bench.results import Results

    pythons = _pythons(peer_python)
    if peers is not None and (target is None or input is None):
        raise InputError("--peers needs --target, --draft and --input: what the scripts decode")
    grid = _grid(batch_sizes, num_speculative_tokens, numerics, method, dtype, target, quick=quick)
    grid, questions = _questions(grid, input, num_prompts, beside=peers is not None, quick=quick)
    grid = _sized(grid, max_new_tokens or (16 if quick else 48))
    runner = _runner(target, draft, device, questions)
    records = _measure(grid, runner, output)
    lines = _beside(peers, target, grid, pythons, output) if peers and target else []
    results = Results(records)
    path = report.write(
        output,
        "Throughput",
        report.throughput_tables(results, lines),
        report.throughput_plots(results, lines),
    )
    failed = [r["cell"] for r in records if r["status"] != "ok"]
    failed += [line for line in lines if "error" in line]
    _finish(path, len(records) + len(lines), failed, json=json)


@reports_errors
def scaling(
    target: Target = None,
    draft: Draft = None,
    batch_sizes: Numbers = "1,2,4,8,16,32,64",
    contexts: Annotated[
        str, _option("--contexts", "Tokens per prompt, separated by commas.")
    ] = "64,256,512",
    num_speculative_tokens: Drafts = "4",
    numerics: Tiers = "exact",
    method: opt.Method = "rows",
    dtype: Dtype = None,
    device: opt.Device = "cpu",
    max_new_tokens: NewTokens = None,
    output: Annotated[Path, _option("--output", "Folder for results and report.")] = Path(
        "bench-scaling"
    ),
    quick: Quick = False,
    json: opt.JsonFlag = False,
) -> None:
    """What a round costs, against the length of the context and the number of rows.

    Exit codes: 0 all runs finished, 1 some failed, 2 nothing could be done as asked.
    """
    from dataclasses import replace

    from draftproof.bench import throughput_report as report
    from draftproof.bench.results import Results
    from draftproof.bench.workloads import built_in

    grid = _grid(batch_sizes, num_speculative_tokens, numerics, method, dtype, target, quick=quick)
    lengths = _numbers("--contexts", contexts)
    grid = replace(grid, contexts=lengths[:1] if quick else lengths)
    grid = _sized(grid, max_new_tokens or (8 if quick else 24))
    records = _measure(grid, _runner(target, draft, device, built_in()), output)
    results = Results(records)
    path = report.write(output, "Scaling", [report.rounds(results)], report.scaling_plots(results))
    failed = [r["cell"] for r in records if r["status"] != "ok"]
    _finish(path, len(records), failed, json=json)


def _grid(
    sizes: str,
    drafts: str,
    numerics: str,
    method: str,
    dtype: str | None,
    target: str | None,
    *,
    quick: bool,
) -> Grid:
    from draftproof.bench.throughput import Grid

    numbers = _numbers("--batch-sizes", sizes)
    tiers = tuple(str(opt.Numerics(word)) for word in _words(numerics))
    return Grid(
        batch_sizes=numbers[:2] if quick else numbers,
        drafts=tuple(opt.drafts_or_auto(word) for word in _words(drafts)),
        numerics=tiers,
        method=method,
        dtype=dtype or ("float32" if target is None else "bfloat16"),
    )


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    if not all(word.isdecimal() and int(word) for word in _words(text)):
        raise InputError(f"{name}: whole numbers separated by commas, got {text!r}")
    return tuple(int(word) for word in _words(text))


def _pythons(words: list[str] | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in words or []]
    for name, _, python in pairs:
        if not (name and python):
            raise InputError(f"--peer-python takes NAME=PYTHON, got {name!r}")
    return {name: python for name, _, python in pairs}


def _questions(
    grid: Grid, source: Path | None, count: int | None, *, beside: bool, quick: bool
) -> tuple[Grid, list[Question]]:
    """The prompts, the peers' own where there are any."""
    from dataclasses import replace

    from draftproof.bench.peers import peer_questions
    from draftproof.bench.workloads import balanced, built_in, spec_bench

    if beside and source is not None:
        chosen = peer_questions(source, count or grid.num_prompts)
    else:
        known = built_in() if source is None else spec_bench(source)
        chosen = balanced(known, count or min(len(known), 6 if quick else grid.num_prompts))
    return replace(grid, num_prompts=len(chosen)), chosen


def _sized(grid: Grid, max_new_tokens: int) -> Grid:
    from dataclasses import replace

    return replace(grid, max_new_tokens=max_new_tokens)


def _runner(
    target: str | None, draft: str | None, device: str, questions: list[Question]
) -> Runner:
    import torch

    from draftproof.bench.clocks import REST
    from draftproof.bench.loading import LoadedModels
    from draftproof.bench.runner import Runner
    from draftproof.models import demo_paths

    if (target is None) != (draft is None):
        raise InputError("give both --target and --draft")
    names = demo_paths() if target is None or draft is None else (target, draft)
    models = LoadedModels(target=str(names[0]), draft=str(names[1]), device=torch.device(device))
    return Runner(models=models, questions=questions, max_input_len=256, proposing=REST)


def _measure(grid: Grid, runner: Runner, folder: Path) -> list[dict[str, Any]]:
    import hashlib
    from dataclasses import replace

    from draftproof.bench.loading import LoadedModels
    from draftproof.bench.throughput import Measurement

    loaded = runner.models
    assert isinstance(loaded, LoadedModels)
    text = dumps([question.text for question in runner.questions])
    if grid.contexts:  # prompts are repeated to any length, and not cut
        runner = replace(runner, max_input_len=max(grid.contexts))
    return Measurement(
        grid=grid,
        runner=runner,
        models={
            "target": Path(loaded.target).name,
            "draft": Path(loaded.draft).name,
            "prompts": hashlib.sha256(text.encode()).hexdigest()[:12],
        },
        folder=folder,
        tell=note,
    ).run()


def _beside(
    folder: Path, target: str, grid: Grid, pythons: dict[str, str], output: Path
) -> list[dict[str, Any]]:
    import torch

    from draftproof.bench.peers import Peers

    work = Peers(
        folder=folder,
        home=Path(target).resolve().parent,
        max_new_tokens=grid.max_new_tokens,
        threads=torch.get_num_threads(),
        pythons=pythons,
    )
    lines = list(work.run(note))
    text = "".join(dumps(line) + "\n" for line in lines)
    (output / "peers.jsonl").write_text(text, encoding="utf-8")
    return lines


def _finish(path: Path, runs: int, failed: list[Any], *, json: bool) -> None:
    if json:
        typer.echo(dumps({"report": str(path), "runs": runs, "failed": failed}))
    else:
        typer.echo(path.read_text(encoding="utf-8"))
        note(f"{runs} runs, {len(failed)} failed: {path}")
    raise typer.Exit(Exit.FAILED if failed else Exit.OK)
