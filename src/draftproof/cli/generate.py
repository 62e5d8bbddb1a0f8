"""`draftproof generate`: decode many prompts, keep every finished line, go on after a kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import options as opt
from draftproof.cli.bulk import exit_of, open_journal, refuse_same, run_bulk, served_names
from draftproof.cli.console import reports_errors, show_log
from draftproof.cli.decoding import Run, Task
from draftproof.cli.inputs import open_source
from draftproof.cli.journal import new_meta
from draftproof.cli.sinks import OrderedPrinter
from draftproof.cli.survey import Survey, survey
from draftproof.errors import InputError

Output = Annotated[
    Path | None,
    typer.Option("--output", help="Write one JSON line per request here, as rows finish."),
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
    resume: opt.Resume = False,
    overwrite: opt.Overwrite = False,
    ordered: opt.Ordered = False,
    label: opt.Labels = None,
    served_model_name: opt.ServedModelName = None,
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
    n: opt.Answers = None,
    logprobs: opt.Logprobs = None,
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
    audit: opt.Audit = 0.0,
    audit_evidence: opt.AuditEvidence = opt.EVIDENCE,
    json: opt.JsonFlag = False,
) -> None:
    """Continue prompts from the command line, a file, a folder or stdin.

    Text, or with --json one JSON object per line, goes to stdout in the order of the prompts. With
    --output, JSON lines go to a file as rows finish, and --json prints a summary.

    Lines may have settings of their own, in OpenAI's or vLLM's names; the options are the defaults
    of lines without. Without any temperature a line is decoded greedily.

    Exit codes: 0 all done, 1 some lines could not be used, 2 nothing could be done as asked,
    4 an audited output is not what the target alone writes, 130 interrupted.
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
        n=n,
        logprobs=logprobs,
    )
    _refuse_mistakes(input, output, keeps=resume or overwrite, ordered=ordered)
    meta = new_meta(
        {"command": "generate", "--chat": chat, "--label": sorted(label or ())}
        | models.settings()
        | decoding.settings()
    )
    with open_source(prompt, input, chat=chat, labels=label or ()) as source:
        task = _task(survey(source), models, decoding, served_model_name, meta)
        task = replace(task, audit=audit, evidence=audit_evidence)
        if output is None:
            run = run_bulk(OrderedPrinter(task.survey.total, as_json=json), task)
        else:
            journal = open_journal(output, meta, task, resume=resume, overwrite=overwrite)
            run = run_bulk(journal, replace(task, seed=journal.meta["seed"]), ordered=ordered)
    _end(run, summary=json and output is not None)


def _task(
    lines: Survey,
    models: opt.ModelOptions,
    decoding: opt.DecodingOptions,
    names: Sequence[str] | None,
    meta: Mapping[str, Any],
) -> Task:
    from draftproof.cli.records import OwnRecords
    from draftproof.schema import Defaults

    return Task(
        survey=lines,
        models=models,
        decoding=decoding,
        defaults=Defaults(options=decoding.request(), max_new_tokens=decoding.max_new_tokens),
        records=OwnRecords(),
        names=served_names(models, names),
        seed=meta["seed"],
    )


def _end(run: Run, *, summary: bool) -> None:
    if summary:
        typer.echo(dumps(run.as_dict()))
    raise typer.Exit(exit_of(run))


def _refuse_mistakes(
    source: str | None, output: Path | None, *, keeps: bool, ordered: bool
) -> None:
    if output is None and keeps:
        raise InputError("--resume and --overwrite need --output")
    if output is None and ordered:
        raise InputError("--ordered needs --output; stdout is in the order of the input already")
    refuse_same(source, output)
