"""`draftproof generate`: decode many prompts, keep every finished line, go on after a kill."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import options as opt
from draftproof.cli.console import Exit, note, reports_errors, show_log
from draftproof.cli.decoding import Run, decode_into
from draftproof.cli.inputs import Item, read_items
from draftproof.cli.journal import Journal, fingerprint
from draftproof.cli.sinks import OrderedPrinter, Sink
from draftproof.errors import InputError

Output = Annotated[
    Path | None,
    typer.Option("--output", help="Write one JSON line per request here, as rows finish."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with --output where an interrupted run stopped.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what --output already holds.")
]


@reports_errors
def command(
    target: opt.Target,
    draft: opt.Draft = None,
    ngram: opt.Ngram = False,
    prompt: opt.Prompts = None,
    input: opt.Input = None,
    chat: opt.Chat = False,
    output: Output = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    max_new_tokens: opt.MaxNewTokens = 128,
    min_new_tokens: opt.MinNewTokens = 0,
    stop_string: opt.StopStrings = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    seed: opt.Seed = None,
    coupling: opt.Coupling = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = None,
    frequency_penalty: opt.FrequencyPenalty = None,
    num_speculative_tokens: opt.DraftsOrAuto = None,
    max_num_speculative_tokens: opt.MaxNumSpeculativeTokens = 8,
    max_num_seqs: opt.MaxNumSeqs = 8,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = 512,
    prompt_lookup_max: opt.LookupMax = 3,
    prompt_lookup_min: opt.LookupMin = 1,
    dtype: opt.DtypeOption = opt.Dtype.AUTO,
    device: opt.Device = "cpu",
    numerics: opt.NumericsOption = opt.Numerics.AUTO,
    method: opt.Method = "rows",
    method_option: opt.MethodOption = None,
    executor: opt.Executor = "torch",
    draft_executor: opt.DraftExecutor = None,
    executor_option: opt.ExecutorOption = None,
    json: opt.JsonFlag = False,
) -> None:
    """Continue prompts from the command line, a file, a folder or stdin.

    Text, or with --json one JSON object per line, goes to stdout in the order of the prompts. With
    --output, JSON lines go to a file as rows finish, and --json prints a summary.

    Exit codes: 0 all done, 1 some lines could not be used, 2 nothing could be done as asked,
    130 interrupted.
    """
    show_log()
    models = opt.ModelOptions(
        target=target,
        draft=draft,
        ngram=ngram,
        dtype=dtype,
        device=device,
        numerics=numerics,
        method=method,
        method_options=opt.method_options(method_option),
        executor=executor,
        draft_executor=draft_executor,
        executor_options=opt.executor_options(executor_option),
        prompt_lookup_max=prompt_lookup_max,
        prompt_lookup_min=prompt_lookup_min,
    )
    decoding = opt.DecodingOptions(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop_strings=tuple(stop_string or ()),
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=opt.drafts_of(num_speculative_tokens, method),
        max_num_speculative_tokens=max_num_speculative_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        coupling=coupling,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    _refuse_mistakes(input, output, keeps=resume or overwrite)
    items = read_items(prompt, input, chat=chat)
    if output is None:
        run = _finish(OrderedPrinter(items, as_json=json), items, models, decoding)
    else:
        meta = fingerprint(items, models.settings() | decoding.settings())
        journal = Journal(output, meta, resume=resume, overwrite=overwrite)
        _say_what_is_there(journal)
        run = _finish(journal, items, models, decoding, output=output)
    if json and output is not None:
        typer.echo(dumps(run.as_dict()))
    raise typer.Exit(Exit.FAILED if run.failed else Exit.OK)


def _refuse_mistakes(source: str | None, output: Path | None, *, keeps: bool) -> None:
    if output is None and keeps:
        raise InputError("--resume and --overwrite need --output")
    if output is not None and source is not None and Path(source).resolve() == output.resolve():
        raise InputError("--output is the input file")


def _say_what_is_there(journal: Journal) -> None:
    if journal.dropped:
        note(f"dropped {journal.dropped} incomplete line(s) of {journal.path}", style="yellow")
    if journal.done:
        note(f"{len(journal.done)} requests were already done")


def _finish(
    sink: Sink,
    items: Sequence[Item],
    models: opt.ModelOptions,
    decoding: opt.DecodingOptions,
    output: Path | None = None,
) -> Run:
    """Run to the end or to Ctrl-C, and say on stderr how far it came."""
    run = Run(total=len(items))
    try:
        decode_into(sink, items, models, decoding, run)
    except KeyboardInterrupt:
        how = "" if output is None else "; --resume does the rest"
        note(f"interrupted: {run.finished} of {run.total} requests done{how}", style="yellow")
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        sink.close()
    failed = f", {run.failed} failed" if run.failed else ""
    note(run.summary.sentence() + failed)
    return run
