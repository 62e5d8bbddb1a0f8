"""`draftproof check`: are the tokens the reference's, and if not, why?"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from draftproof.cli import options as opt
from draftproof.cli.checking import Check, run_check
from draftproof.cli.console import Exit, reports_errors, show_log, stderr, stdout
from draftproof.cli.examining import Outputs, Question, as_question, run_examination
from draftproof.cli.prompts import read_items
from draftproof.cli.summary import percent
from draftproof.errors import InputError
from draftproof.forensics.compare import Divergence

BatchSizes = Annotated[
    str, typer.Option("--batch-sizes", help="Batch sizes to check, separated by commas.")
]
Report = Annotated[
    str | None, typer.Option("--json", help="Write the report as JSON to this file; - is stdout.")
]
ShortTarget = Annotated[
    str | None,
    typer.Option("--target", "--model", help="Short form: the target model, a folder or a hub id."),
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="SPEC",
        help="Long form: what is right. engine:target=DIR,draft=DIR,batch=8,k=4; "
        "transformers:target=DIR,assistant=DIR; http://host:port?kind=vllm; file:ids.jsonl.",
    ),
]
Candidate = Annotated[
    str | None,
    typer.Option("--candidate", metavar="SPEC", help="Long form: what is examined."),
]
ControlsOption = Annotated[
    str,
    typer.Option(
        "--controls", help="auto: the controls that the question needs; all; or none at all."
    ),
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="TOML file with the thresholds of a CI gate.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Long form: makes prompts into ids, for two servers."),
]
Eos = Annotated[
    list[int] | None,
    typer.Option(
        "--eos-token-id",
        min=0,
        help="Long form: an id that ends a row on both sides; repeatable. Default: each one's own.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the report as one HTML file.")]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML for CI systems.")]
BundleFolder = Annotated[
    Path | None,
    typer.Option("--bundle", help="Write a folder with everything, for `draftproof replay`."),
]
SHOWN = 10  # divergences in the table; the JSON report holds all


@reports_errors
def command(
    target: ShortTarget = None,
    draft: opt.Draft = None,
    ngram: opt.Ngram = False,
    reference: Reference = None,
    candidate: Candidate = None,
    prompt: opt.Prompts = None,
    input: opt.Input = None,
    chat: opt.Chat = False,
    batch_sizes: BatchSizes = "1,4,8",
    max_new_tokens: opt.MaxNewTokens = 64,
    min_new_tokens: opt.MinNewTokens = 0,
    stop_string: opt.StopStrings = None,
    num_speculative_tokens: opt.NumSpeculativeTokens = 4,
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
    controls: ControlsOption = "auto",
    policy: PolicyFile = None,
    tokenizer: Tokenizer = None,
    eos_token_id: Eos = None,
    json: Report = None,
    html: Html = None,
    junit: JUnit = None,
    bundle: BundleFolder = None,
) -> None:
    """Compare outputs, and say why they differ.

    Short form, `--target T [--draft D]`: speculative decoding at several batch sizes against plain
    decoding one at a time. Long form, `--reference SPEC --candidate SPEC`: any two of our engine,
    transformers, a server and a recorded file; whatever differs gets a cause (numeric, harness, a
    bug and its kind, undecided). With `--html`, `--junit`, `--bundle` or `--policy` the short form
    is examined in the same way, at its largest batch size.

    Token ids are compared, not text. A row's partial match is the share of its reference before
    the first difference.

    Exit codes: 0 all equal, or numeric differences within the policy; 1 a bug or a broken policy
    (short form: some tokens differ); 2 nothing could be checked as asked; 3 undecided;
    70 an error of this program, with its traceback.
    """
    show_log()
    if (reference is None) != (candidate is None) or (reference is None) == (target is None):
        raise InputError("give either --target, or --reference with --candidate")
    sizes = parse_sizes(batch_sizes)
    outputs = Outputs(json=json, html=html, junit=junit, bundle=bundle)
    decoding = opt.DecodingOptions(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop_strings=tuple(stop_string or ()),
        num_speculative_tokens=num_speculative_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    if reference is not None and candidate is not None:
        asked = Question(
            reference=reference,
            candidate=candidate,
            decoding=decoding,
            controls=controls,
            policy=policy,
            tokenizer=tokenizer,
            eos_token_id=tuple(eos_token_id) if eos_token_id else None,
        )
        items = read_items(prompt, input, chat=chat)
        raise typer.Exit(run_examination(asked, items, outputs))
    assert target is not None
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
    items = read_items(prompt, input, chat=chat)
    if outputs.examined or policy is not None:
        asked = as_question(models, decoding, max(sizes), controls, policy)
        raise typer.Exit(run_examination(asked, items, outputs))
    check = run_check(items, models, decoding, sizes)
    _print(check, to_stderr=json == "-")
    _write(check, json)
    raise typer.Exit(Exit.OK if check.equal else Exit.FAILED)


def parse_sizes(text: str) -> list[int]:
    """ "1,4,8" as numbers, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InputError(f"--batch-sizes must be whole numbers from 1, as in 1,4,8; got {text!r}")
    return list(dict.fromkeys(int(word) for word in words))


def _print(check: Check, *, to_stderr: bool) -> None:
    console = stderr() if to_stderr else stdout()
    console.print(_table(check))
    for trial in check.trials:
        for divergence in trial.comparison.divergences[:SHOWN]:
            where = f"batch {trial.batch_size}, {check.sources[divergence.row]}"
            console.print(f"{where}: {_words(divergence, check)}", markup=False, soft_wrap=True)


def _table(check: Check) -> Table:
    title = f"{check.prompts} prompts against plain decoding one at a time"
    modes = ", ".join(sorted(set().union(*(trial.summary.modes for trial in check.trials))))
    table = Table(title=title, caption=f"mode: {modes}")
    for name in ("batch size", "exact", "partial", "acceptance", "tokens/s", "numerics"):
        table.add_column(name, justify="right")
    for trial in check.trials:
        match, summary = trial.comparison, trial.summary
        table.add_row(
            str(trial.batch_size),
            f"{match.exact}/{match.rows}",
            percent(match.partial),
            percent(summary.stats.draft_acceptance_rate) if summary.stats.num_draft_tokens else "-",
            f"{summary.tokens_per_second:.1f}",
            ", ".join(sorted(summary.numerics)),
        )
    return table


def _words(divergence: Divergence, check: Check) -> str:
    expected, found = (_token(i, check) for i in (divergence.expected, divergence.found))
    return f"token {divergence.position}: expected {expected}, found {found}"


def _token(token_id: int | None, check: Check) -> str:
    return "the end" if token_id is None else f"{token_id} {check.token_text(token_id)!r}"


def _write(check: Check, where: str | None) -> None:
    if where is None:
        return
    text = jsonlib.dumps(check.as_dict(), indent=2)
    if where == "-":
        typer.echo(text)
    else:
        Path(where).write_text(text + "\n", encoding="utf-8")
