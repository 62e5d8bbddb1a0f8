"""`draftproof run-batch`: OpenAI batch files in, OpenAI batch output."""

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
from draftproof.cli.decoding import Task
from draftproof.cli.inputs import open_source
from draftproof.cli.journal import new_meta
from draftproof.cli.survey import Survey, survey

InputFile = Annotated[
    str, typer.Option("--input-file", "-i", help="Requests in OpenAI's batch format, or - (stdin).")
]
OutputFile = Annotated[
    Path, typer.Option("--output-file", "-o", help="Where OpenAI's batch output goes.")
]


@reports_errors
def command(
    input_file: InputFile,
    output_file: OutputFile,
    target: opt.Target,
    draft: opt.Draft = None,
    ngram: opt.Ngram = False,
    served_model_name: opt.ServedModelName = None,
    resume: opt.Resume = False,
    overwrite: opt.Overwrite = False,
    ordered: opt.Ordered = False,
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
    """Answer an OpenAI batch file, for /v1/completions and /v1/chat/completions.

    What a request leaves out means what it means to OpenAI: temperature 1, that is sampled. A
    request without a seed gets one that derives from its line, and the answer tells it.

    Exit codes: 0 all done, 1 some requests were refused, 2 nothing could be done as asked,
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
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=opt.drafts_of(num_speculative_tokens, method),
        max_num_speculative_tokens=max_num_speculative_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    refuse_same(input_file, output_file)
    names = served_names(models, served_model_name)
    meta = new_meta(
        {"command": "run-batch", "model": names[0]} | models.settings() | decoding.engine_settings()
    )
    with open_source(None, input_file, batch=True) as source:
        task = _task(survey(source), models, decoding, names, meta)
        journal = open_journal(output_file, meta, task, resume=resume, overwrite=overwrite)
        task = _task(task.survey, models, decoding, names, journal.meta)
        task = replace(task, audit=audit, evidence=audit_evidence)
        run = run_bulk(journal, task, ordered=ordered)
    if json:
        typer.echo(dumps(run.as_dict()))
    raise typer.Exit(exit_of(run))


def _task(
    lines: Survey,
    models: opt.ModelOptions,
    decoding: opt.DecodingOptions,
    names: Sequence[str],
    meta: Mapping[str, Any],
) -> Task:
    from draftproof.cli.records import BatchRecords
    from draftproof.schema import OPENAI

    return Task(
        survey=lines,
        models=models,
        decoding=decoding,
        defaults=OPENAI,
        records=BatchRecords(model=names[0], created=meta["created"]),
        names=names,
        seed=meta["seed"],
        unique=True,
    )
