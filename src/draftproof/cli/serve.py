"""`draftproof serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from draftproof.cli import options as opt
from draftproof.cli.console import note, reports_errors
from draftproof.errors import InputError

Host = Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0: all of them.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen at.")]
ApiKey = Annotated[
    list[str] | None,
    typer.Option("--api-key", help="Accept only this key; may be given several times."),
]
ServedName = Annotated[
    list[str] | None,
    typer.Option("--served-model-name", help="The model's name for clients; may be repeated."),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", min=1, help="Most tokens of a request, prompt and new ones."),
]
MaxKvTokens = Annotated[
    int | None,
    typer.Option(
        "--max-kv-tokens",
        min=1,
        help="Tokens that all running requests may come to need; a request waits until it fits.",
    ),
]
MaxQueue = Annotated[
    int, typer.Option("--max-queue", min=0, help="Requests that may wait; more get HTTP 429.")
]
RequestTimeout = Annotated[
    float | None, typer.Option("--request-timeout", min=0, help="Seconds a request may take.")
]
MaxBody = Annotated[
    int, typer.Option("--max-body-bytes", min=1, help="Largest request body; more get HTTP 413.")
]
DrainSeconds = Annotated[
    int, typer.Option("--drain-seconds", min=0, help="Time for running requests after SIGTERM.")
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        help="vLLM's JSON instead of --draft, --ngram and --num-speculative-tokens: method, model, "
        "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min.",
    ),
]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log lines as JSON objects.")]

METHODS = ("draft_model", "ngram")
CONFIG_FIELDS = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_max",
    "prompt_lookup_min",
}


@reports_errors
def command(
    target: opt.Target,
    draft: opt.Draft = None,
    ngram: opt.Ngram = False,
    speculative_config: SpeculativeConfig = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    served_model_name: ServedName = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: opt.MaxNumSeqs = 8,
    max_kv_tokens: MaxKvTokens = None,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = 512,
    num_speculative_tokens: opt.DraftsOrAuto = None,
    max_num_speculative_tokens: opt.MaxNumSpeculativeTokens = 8,
    prompt_lookup_max: opt.LookupMax = 3,
    prompt_lookup_min: opt.LookupMin = 1,
    max_queue: MaxQueue = 256,
    request_timeout: RequestTimeout = None,
    max_body_bytes: MaxBody = 16 * 2**20,
    drain_seconds: DrainSeconds = 30,
    dtype: opt.DtypeOption = opt.Dtype.AUTO,
    device: opt.Device = "cpu",
    numerics: opt.NumericsOption = opt.Numerics.AUTO,
    executor: opt.Executor = "torch",
    draft_executor: opt.DraftExecutor = None,
    executor_option: opt.ExecutorOption = None,
    json_logs: JsonLogs = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it, every request decoded as if it were alone.

    Every option is an environment variable too: DRAFTPROOF_SERVE_PORT, ...
    """
    given = speculation(speculative_config, draft, ngram, num_speculative_tokens)
    lookup_max = given.get("prompt_lookup_max", prompt_lookup_max)
    models = opt.ModelOptions(
        target=target,
        draft=given["draft"],
        ngram=given["ngram"],
        dtype=dtype,
        device=device,
        numerics=numerics,
        executor=executor,
        draft_executor=draft_executor,
        executor_options=opt.executor_options(executor_option),
        prompt_lookup_max=lookup_max,
        prompt_lookup_min=given.get("prompt_lookup_min", prompt_lookup_min),
    )
    engine: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "num_speculative_tokens": given["num_speculative_tokens"],
        "max_num_speculative_tokens": max_num_speculative_tokens,
    }
    _serve(
        models,
        engine,
        host=host,
        port=port,
        json_logs=json_logs,
        settings={
            "names": tuple(served_model_name or (target,)),
            "api_keys": tuple(api_key or ()),
            "max_model_len": max_model_len,
            "max_kv_tokens": max_kv_tokens,
            "max_waiting": max_queue,
            "request_timeout": request_timeout,
            "max_body_bytes": max_body_bytes,
            "drain_seconds": drain_seconds,
        },
    )


def speculation(
    config: str | None, draft: str | None, ngram: bool, drafts: str | None
) -> dict[str, Any]:
    """draft, ngram and num_speculative_tokens, from vLLM's JSON or from the options.

    Raises InputError, naming the field, for what would be ignored.
    """
    if config is None:
        return {
            "draft": draft,
            "ngram": ngram,
            "num_speculative_tokens": opt.drafts_of(drafts, "rows"),
        }
    if draft or ngram or drafts:
        raise InputError(
            "--speculative-config says it all: leave out --draft, --ngram and "
            "--num-speculative-tokens"
        )
    fields = _parsed(config)
    method = fields.get("method", "draft_model" if "model" in fields else None)
    if method not in METHODS:
        raise InputError(f"--speculative-config: method {method!r}; there are {', '.join(METHODS)}")
    if (method == "draft_model") != ("model" in fields):
        raise InputError("--speculative-config: model goes with method draft_model, and only there")
    rest = {name: fields[name] for name in fields if name.startswith("prompt_lookup_")}
    count = fields.get("num_speculative_tokens")
    return {
        "draft": fields.get("model"),
        "ngram": method == "ngram",
        "num_speculative_tokens": opt.AUTO if count is None else opt.drafts_or_auto(str(count)),
        **rest,
    }


def _parsed(config: str) -> dict[str, Any]:
    try:
        fields = json.loads(config)
    except ValueError as error:
        raise InputError(f"--speculative-config is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError("--speculative-config must be a JSON object")
    if unknown := sorted(fields.keys() - CONFIG_FIELDS):
        raise InputError(
            f"--speculative-config: {', '.join(unknown)} is not supported; there are "
            f"{', '.join(sorted(CONFIG_FIELDS))}"
        )
    return fields


def _serve(
    models: opt.ModelOptions,
    engine: dict[str, Any],
    *,
    host: str,
    port: int,
    json_logs: bool,
    settings: dict[str, Any],
) -> None:
    try:
        from draftproof.server.app import ServerSettings
        from draftproof.server.run import serve
    except ImportError as error:
        raise InputError(
            f"the server needs {error.name}: pip install 'draftproof[server]'"
        ) from error
    from draftproof.cli.loading import open_pair

    note(f"loading {models.target}")
    pair = open_pair(models)
    serve(
        pair,
        ServerSettings(**settings, engine=engine),
        host=host,
        port=port,
        json_logs=json_logs,
    )
