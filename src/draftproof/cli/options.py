"""Options that several commands share, and the groups of them that travel together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.errors import InputError

AUTO = "auto"
FIXED_DRAFTS = 4  # K of the commands and methods that draft the same in every round


class Dtype(StrEnum):
    """Number formats of the weights; auto is what the model's own files say."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Numerics(StrEnum):
    """exact: the same bits in every batch; fast: the best kernels; auto: exact where it holds."""

    AUTO = "auto"
    EXACT = "exact"
    FAST = "fast"


# -- models

Target = Annotated[
    str, typer.Option("--target", "--model", help="Target model: a folder or a hub id.")
]
Draft = Annotated[
    str | None, typer.Option("--draft", help="Draft model: a folder or a hub id. None: plain.")
]
Ngram = Annotated[
    bool, typer.Option("--ngram", help="Draft by looking up n-grams in the row's own text.")
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights.")]
Device = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, ...")]
NumericsOption = Annotated[
    Numerics,
    typer.Option("--numerics", help="exact: the same bits in every batch. fast: the best kernels."),
]
Method = Annotated[str, typer.Option("--method", help="How rows of unequal length share a batch.")]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method-option",
        help="NAME=VALUE of the method's own, may be given several times; exspec has window_size, "
        "sort_by_length, policy and waiting_limit.",
    ),
]
Executor = Annotated[
    str, typer.Option("--executor", help="What runs the models: torch, or openvino (CPU only).")
]
DraftExecutor = Annotated[
    str | None,
    typer.Option("--draft-executor", help="What runs the draft model, if not the same."),
]
ExecutorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option",
        help="NAME=VALUE of openvino's own, may be given several times: kv_cache_dtype (auto, "
        "float32, bfloat16, float16, uint8), num_threads.",
    ),
]
LookupMax = Annotated[
    int, typer.Option("--prompt-lookup-max", min=1, help="Longest n-gram that --ngram looks up.")
]
LookupMin = Annotated[
    int, typer.Option("--prompt-lookup-min", min=1, help="Shortest n-gram that --ngram looks up.")
]

# -- input

Prompts = Annotated[
    list[str] | None, typer.Option("--prompt", help="A prompt; may be given several times.")
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Requests: .jsonl, .json, .csv, .tsv, .parquet, .txt (a prompt per line), also .gz or "
        ".zst; a folder of them, where each .txt file is one prompt; or - for stdin, the default.",
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put text prompts through the model's chat template.")
]

# -- output

Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the output of an earlier run; retry failed lines."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the output holds.")]
Ordered = Annotated[
    bool,
    typer.Option("--ordered", help="At the end, put the output's lines in the input's order."),
]

# -- decoding

MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", min=0, help="Longest continuation, in tokens.")
]
MinNewTokens = Annotated[
    int, typer.Option("--min-new-tokens", min=0, help="Shortest continuation, in tokens.")
]
StopStrings = Annotated[
    list[str] | None,
    typer.Option("--stop-string", help="End a row at this text; may be given several times."),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0, help="Sample at this temperature; 0 is greedy."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", min=0, help="Sample among the k most probable tokens.")
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", min=0, max=1, help="Sample among the fewest tokens of this mass."),
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", min=0, max=1, help="Leave out tokens below this share of the best's."),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="The same sampled rows in every run, batch and with every draft."),
]
Coupling = Annotated[
    str | None,
    typer.Option("--coupling", help="seeded (default with --seed) or rejection (most accepted)."),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option("--repetition-penalty", help="Above 1: fewer tokens that prompt or text hold."),
]
PresencePenalty = Annotated[
    float | None, typer.Option("--presence-penalty", help="Subtracted once per generated token.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option("--frequency-penalty", help="Subtracted for every occurrence.")
]
Answers = Annotated[
    int | None, typer.Option("--n", min=1, help="Answers per prompt; more than 1 are sampled.")
]
Logprobs = Annotated[
    int | None,
    typer.Option("--logprobs", min=0, max=20, help="Log-probabilities of the n best per token."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="A key of input lines to be copied to the output; repeatable."),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name", help="A name that lines may give as their model; repeatable."
    ),
]
MaxNumSeqs = Annotated[
    int, typer.Option("--max-num-seqs", min=1, help="Most rows decoded together.")
]
NumSpeculativeTokens = Annotated[
    int, typer.Option("--num-speculative-tokens", min=0, help="Draft tokens per row and round (K).")
]
DraftsOrAuto = Annotated[
    str | None,
    typer.Option(
        "--num-speculative-tokens",
        metavar="INTEGER|auto",
        help="Draft tokens per row and round (K); auto: from measured costs and acceptance, 0 "
        "included. By default auto, with the paper's methods 4.",
    ),
]
MaxNumSpeculativeTokens = Annotated[
    int,
    typer.Option(
        "--max-num-speculative-tokens", min=1, help="Most draft tokens per row and round of auto."
    ),
]
MaxNumBatchedTokens = Annotated[
    int, typer.Option("--max-num-batched-tokens", min=1, help="Most tokens fed in one round.")
]
Audit = Annotated[
    float,
    typer.Option(
        "--audit",
        min=0,
        max=1,
        help="Share of requests that are decoded again, plain and alone, and compared.",
    ),
]
AuditEvidence = Annotated[
    Path,
    typer.Option(
        "--audit-evidence", help="Folder for what a failed audit found; `replay` reads it."
    ),
]
EVIDENCE = Path("draftproof-audit")
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """What `draftproof.load` is asked for."""

    target: str
    draft: str | None = None
    ngram: bool = False
    dtype: str = "auto"
    device: str = "cpu"
    numerics: str = "auto"
    method: str = "rows"
    method_options: Mapping[str, Any] | None = None
    executor: str = "torch"
    draft_executor: str | None = None
    executor_options: Mapping[str, Any] | None = None
    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1

    def __post_init__(self) -> None:
        if self.draft is not None and self.ngram:
            raise InputError("give either --draft or --ngram, not both")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise InputError(
                f"--prompt-lookup-min {self.prompt_lookup_min} is more than "
                f"--prompt-lookup-max {self.prompt_lookup_max}"
            )

    @property
    def models(self) -> list[str]:
        """Folders and hub ids."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def is_local(self) -> bool:
        """Whether nothing can be left to download."""
        return all(Path(name).is_dir() for name in self.models)

    def settings(self) -> dict[str, Any]:
        """By option name, folders as absolute paths, for comparing two runs."""
        values = asdict(self) | {"target": _absolute(self.target), "draft": _absolute(self.draft)}
        return as_options(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingOptions:
    """What `Pair.generate` is asked for."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop_strings: Sequence[str] = ()
    max_num_seqs: int = 8
    num_speculative_tokens: int | str = FIXED_DRAFTS
    max_num_speculative_tokens: int = 8
    max_num_batched_tokens: int = 512
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    coupling: str | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: int | None = None
    logprobs: int | None = None

    def settings(self) -> dict[str, Any]:
        """By option name, for comparing two runs.

        How many rows share a batch is left out: a run that did not fit in memory may be resumed
        with fewer.
        """
        values = self.report()
        del values["max_num_seqs"], values["max_num_batched_tokens"]
        values["stop_string"] = values.pop("stop_strings")
        return as_options(values)

    def engine_settings(self) -> dict[str, Any]:
        """As `settings`, of a command where requests bring all that is their own."""
        values = self.settings()
        return {name: values[name] for name in as_options(self.engine()) if name in values}

    def report(self) -> dict[str, Any]:
        """As they are named in Python, for reports."""
        return self._always() | {"stop_strings": list(self.stop_strings)} | self.given()

    def engine(self) -> dict[str, Any]:
        """Keywords of `Pair.generate` that concern all rows together."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "num_speculative_tokens": self.num_speculative_tokens,
            "max_num_speculative_tokens": self.max_num_speculative_tokens,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }

    def request(self) -> dict[str, Any]:
        """Keywords of `Pair.generate` that a request may have of its own, but its length."""
        given = self.given()
        if "n" in given:
            given["num_return_sequences"] = given.pop("n")
        stops = {"stop_strings": list(self.stop_strings)} if self.stop_strings else {}
        return {"min_new_tokens": self.min_new_tokens} | stops | given

    def given(self) -> dict[str, Any]:
        """The options without a default of their own that were given."""
        values = asdict(self)
        return {k: v for k, v in values.items() if v is not None and k not in self._always()}

    def _always(self) -> dict[str, Any]:
        defaults = {field.name: field.default for field in fields(self)}
        return {k: v for k, v in asdict(self).items() if defaults[k] is not None}

    def keywords(self, limits: Sequence[int | None] = ()) -> dict[str, Any]:
        """Keywords of `Pair.generate`; `limits` are requests' own max_new_tokens."""
        own = any(limit is not None for limit in limits)
        default = self.max_new_tokens
        return {
            "max_new_tokens": [default if n is None else n for n in limits] if own else default,
            "stop_strings": None,
            **self.engine(),
            **self.request(),
        }


def drafts_of(word: str | None, method: str) -> int | str:
    """A number of drafts, or "auto", which is also what nothing said means for rows."""
    if word is None:
        return AUTO if method == "rows" else FIXED_DRAFTS
    return drafts_or_auto(word)


def drafts_or_auto(word: str) -> int | str:
    """A number of drafts, or "auto". Raises InputError for another word."""
    if word == AUTO:
        return word
    if not word.isdecimal():
        raise InputError(f'--num-speculative-tokens: a number, 0 or more, or "auto", got {word!r}')
    return int(word)


def method_options(words: Sequence[str] | None) -> dict[str, Any] | None:
    """`["window_size=32", "policy=oldest"]` as keywords; numbers and true or false are parsed."""
    return _named_values("--method-option", words)


def executor_options(words: Sequence[str] | None) -> dict[str, Any] | None:
    """`["kv_cache_dtype=uint8"]` as keywords."""
    return _named_values("--executor-option", words)


def _named_values(option: str, words: Sequence[str] | None) -> dict[str, Any] | None:
    """NAME=VALUE words as keywords.

    Raises InputError for a word without a sign of equality.
    """
    if not words:
        return None
    pairs = [word.partition("=") for word in words]
    for name, sign, _ in pairs:
        if not (name and sign):
            raise InputError(f"{option} takes NAME=VALUE, got {name!r}")
    return {name.replace("-", "_"): _value(text) for name, _, text in pairs}


def _value(text: str) -> Any:
    """A number, true or false, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def as_options(values: dict[str, Any]) -> dict[str, Any]:
    """Names of fields to the names a user typed."""
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def _absolute(name: str | None) -> str | None:
    """A folder as an absolute path; a hub id stays as it is."""
    return str(Path(name).resolve()) if name is not None and Path(name).exists() else name
