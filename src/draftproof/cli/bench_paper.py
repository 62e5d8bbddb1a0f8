"""`draftproof bench paper`: every table of the paper on any pair of models."""

from __future__ import annotations

from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.bench_plan import duration, show_plan
from draftproof.cli.console import Exit, note, reports_errors
from draftproof.cli.options import JsonFlag
from draftproof.errors import InputError

if TYPE_CHECKING:
    from draftproof.bench.pairs import PairPreset
    from draftproof.bench.paper import Step
    from draftproof.bench.settings import Settings
    from draftproof.bench.workloads import Question

# What runs on a CPU in reasonable time. The presets run at the paper's own size.
SMALL: dict[str, Any] = {
    "batch_sizes": (1, 4, 8),
    "num_prompts": 24,
    "max_new_tokens": 48,
    "window_sizes": (8, 16),
    "contexts": (128, 512),
    "realignment_batch_sizes": (1, 8),
}


class PairName(StrEnum):
    """The paper's three pairs."""

    VICUNA = "vicuna"
    QWEN3 = "qwen3"
    GLM4 = "glm4"


class Strategy(StrEnum):
    """The paper's names of its two methods."""

    CROSS_BATCH = "cross_batch"
    BATCH = "batch"


def _option(help: str, *names: str) -> Any:  # noqa: A002 (typer's name)
    return typer.Option(*names, help=help)


Words = str | None
Count = int | None


@reports_errors
def command(
    pair: Annotated[
        PairName | None, _option("One of the paper's pairs, at the paper's settings.", "--pair")
    ] = None,
    target: Annotated[
        Words,
        _option("Folder or hub id. Default: demo pair.", "--target", "--model", "--target_model"),
    ] = None,
    draft: Annotated[
        Words, _option('Draft: a folder, a hub id, or "ngram".', "--draft", "--draft_model")
    ] = None,
    input: Annotated[
        Path | None,
        _option("Spec-Bench question.jsonl. Default: built-in prompts.", "--input", "--input_file"),
    ] = None,
    num_prompts: Annotated[
        Count, _option("Prompts, spread over the categories.", "--num-prompts", "--num_prompts")
    ] = None,
    methods: Annotated[
        Words, _option("Which to run, separated by commas. Default: all.", "--methods")
    ] = None,
    scheduling_strategy: Annotated[
        Strategy | None,
        _option(
            "The paper's names: cross_batch is exspec, batch is eqspec.", "--scheduling_strategy"
        ),
    ] = None,
    batch_sizes: Annotated[
        Words, _option("Separated by commas.", "--batch-sizes", "--batch_size")
    ] = None,
    num_speculative_tokens: Annotated[
        Count, _option("K. Default: 5.", "--num-speculative-tokens", "--n_draft_tokens")
    ] = None,
    max_new_tokens: Annotated[
        Count, _option("Tokens per prompt.", "--max-new-tokens", "--max_new_tokens")
    ] = None,
    max_input_len: Annotated[
        Count, _option("Prompts are cut to this length.", "--max-input-len", "--max_input_len")
    ] = None,
    window_size: Annotated[
        Count, _option("ExSpec's pool outside its own section.", "--window-size", "--window_size")
    ] = None,
    window_sizes: Annotated[
        Words, _option("ExSpec's pools in its own section.", "--window-sizes")
    ] = None,
    length: Annotated[Count, _option("Tokens per prompt in ExSpec's section.", "--length")] = None,
    serving_batch_sizes: Annotated[
        Words, _option("Of the serving section.", "--serving-batch-sizes")
    ] = None,
    contexts: Annotated[
        Words, _option("Tokens per prompt in the realignment section.", "--contexts")
    ] = None,
    realignment_batch_sizes: Annotated[
        Words, _option("Of the realignment section.", "--realignment-batch-sizes")
    ] = None,
    sort_by_length: Annotated[
        bool, _option("ExSpec admits short prompts first.", "--sort-by-length", "--sort_by_length")
    ] = False,
    policy: Annotated[
        Words, _option("ExSpec's: first_full, largest or oldest.", "--policy")
    ] = None,
    dtypes: Annotated[Words, _option("Number formats, separated by commas.", "--dtypes")] = None,
    numerics: Annotated[Words, _option("fast, exact, or both with a comma.", "--numerics")] = None,
    device: Annotated[str, _option("cpu, cuda, cuda:1, ...", "--device")] = "cpu",
    sections: Annotated[
        Words, _option("grid, shares, windows, serving, realignment.", "--sections", "--section")
    ] = None,
    enable_profiling: Annotated[
        bool,
        _option("Time the parts of a round in runs of their own.", "--enable_profiling"),
    ] = False,
    arrival_rate: Annotated[
        float | None, _option("Requests per second in the serving section.", "--arrival-rate")
    ] = None,
    repeats: Annotated[
        Count, _option("Runs of each cell; the fastest counts.", "--repeats")
    ] = None,
    seed: Annotated[Count, _option("Of arrivals and random lengths.", "--seed")] = None,
    output: Annotated[
        Path, _option("Folder for results and reports.", "--output", "--output_dir")
    ] = Path("bench-paper"),
    quick: Annotated[bool, _option("A few prompts, to see that it works.", "--quick")] = False,
    dry_run: Annotated[
        bool, _option("Print plan, memory and expected time; run nothing.", "--dry-run")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Run every method on the same prompts; write results.jsonl, report.md and report.html.

    The same command goes on where an interrupted one stopped.

    Exit codes: 0 all runs finished, 1 some crashed, 2 nothing could be done as asked.
    """
    given = {
        "ways": _ways(methods, scheduling_strategy),
        "batch_sizes": _numbers("--batch-sizes", batch_sizes),
        "k": num_speculative_tokens,
        "num_prompts": num_prompts,
        "max_new_tokens": max_new_tokens,
        "max_input_len": max_input_len,
        "window_size": window_size,
        "window_sizes": _numbers("--window-sizes", window_sizes),
        "length": length,
        "serving_batch_sizes": _numbers("--serving-batch-sizes", serving_batch_sizes),
        "contexts": _numbers("--contexts", contexts),
        "realignment_batch_sizes": _numbers("--realignment-batch-sizes", realignment_batch_sizes),
        "sort_by_length": sort_by_length or None,
        "policy": policy,
        "dtypes": _words(dtypes),
        "numerics": _words(numerics),
        "sections": _words(sections),
        "arrival_rate": arrival_rate,
        "repeats": repeats,
        "seed": seed,
    }
    preset = _preset(pair)
    separate = enable_profiling or device.startswith("cuda")
    settings = _settings(given, preset, quick=quick, separate_clocks=separate)
    names = _models(preset, target, draft)
    if dry_run:
        show_plan(settings, names, device, json=json, as_in_paper=preset is not None)
        return
    asked_for = preset is not None or num_prompts is not None
    questions, settings = _questions(input, settings, asked_for=asked_for)
    _run(settings, names, device, questions, output, json=json)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{name}: whole numbers separated by commas, got {text!r}") from error


def _ways(methods: str | None, strategy: Strategy | None) -> tuple[str, ...] | None:
    if methods is not None and strategy is not None:
        raise InputError("give either --methods or --scheduling_strategy, not both")
    if strategy is None:
        return _words(methods)
    return ("plain", "exspec" if strategy is Strategy.CROSS_BATCH else "eqspec")


def _preset(pair: PairName | None) -> PairPreset | None:
    from draftproof.bench.pairs import PRESETS

    return None if pair is None else PRESETS[pair]


def _settings(
    given: dict[str, Any], preset: PairPreset | None, *, quick: bool, separate_clocks: bool
) -> Settings:
    """What was typed goes before --quick, and that before the size of a preset or of a CPU."""
    from draftproof.bench.settings import DEFAULT_SECTIONS, QUICK, SHARES, Settings

    values: dict[str, Any] = SMALL if preset is None else {"dtypes": (preset.dtype,)}
    values = values | (QUICK if quick else {})
    values = values | {name: value for name, value in given.items() if value is not None}
    if separate_clocks:
        sections = values.get("sections", DEFAULT_SECTIONS)
        values["sections"] = tuple(dict.fromkeys([*sections, SHARES]))
    return Settings(**values, separate_clocks=separate_clocks)


def _models(preset: PairPreset | None, target: str | None, draft: str | None) -> tuple[str, str]:
    """Names of target and draft."""
    if preset is not None:
        return target or preset.target.name, draft or preset.draft.name
    if target is None and draft is None:
        from draftproof.models import demo_paths

        folders = demo_paths()
        return str(folders[0]), str(folders[1])
    if target is None or draft is None:
        raise InputError("give both --target and --draft")
    return target, draft


def _questions(
    source: Path | None, settings: Settings, *, asked_for: bool
) -> tuple[list[Question], Settings]:
    """The prompts, and the settings with as many of them as there are.

    asked_for: the number was asked for, so that fewer are refused
    """
    from dataclasses import replace

    from draftproof.bench.workloads import balanced, built_in, spec_bench

    questions = built_in() if source is None else spec_bench(source)
    if asked_for and settings.num_prompts > len(questions):
        raise InputError(
            f"{settings.num_prompts} prompts wanted, {len(questions)} there: give Spec-Bench's "
            "question.jsonl as --input, or a smaller --num-prompts"
        )
    count = min(settings.num_prompts, len(questions))
    return balanced(questions, count), replace(settings, num_prompts=count)


def _run(
    settings: Settings,
    names: tuple[str, str],
    device: str,
    questions: list[Question],
    folder: Path,
    *,
    json: bool,
) -> None:
    import hashlib

    import torch

    from draftproof.bench.loading import LoadedModels
    from draftproof.bench.paper import Paper
    from draftproof.bench.runner import Runner

    text = dumps([question.text for question in questions])
    models = LoadedModels(target=names[0], draft=names[1], device=torch.device(device))
    runner = Runner(
        models=models,
        questions=questions,
        max_input_len=settings.max_input_len,
        repeats=settings.repeats,
        seed=settings.seed,
    )
    work = Paper(
        settings=settings,
        runner=runner,
        models={
            "target": Path(names[0]).name,
            "draft": Path(names[1]).name,
            "prompts": hashlib.sha256(text.encode()).hexdigest()[:12],
            "max_input_len": settings.max_input_len,
            "repeats": settings.repeats,
            "seed": settings.seed,
        },
        folder=folder,
        on_step=_tell,
    )
    records = work.run()
    crashed = [record for record in records if record["status"] == "crash"]
    if json:
        typer.echo(dumps({"folder": str(folder), "runs": len(records), "crashed": len(crashed)}))
    else:
        note(f"{len(records)} runs, {len(crashed)} crashed: {folder / 'report.html'}")
    raise typer.Exit(Exit.FAILED if crashed else Exit.OK)


def _tell(step: Step) -> None:
    if step.cell is not None:
        left = "" if step.seconds_left is None else f", about {duration(step.seconds_left)} left"
        note(f"{step.done + 1}/{step.total} {step.cell.label}{left}")
