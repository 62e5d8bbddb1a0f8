"""The Python door: load a pair of models, generate, stream. The only place that tokenises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

from draftproof.auditing import Auditor, checked_share
from draftproof.auto_k.options import default_k, drafting
from draftproof.auto_k.state import AutoKState
from draftproof.batch import Request
from draftproof.engine.assembly import Blueprint, Ngram, assemble, name_of
from draftproof.engine.engine import Commit, Engine
from draftproof.engine.methods import Method, method_named
from draftproof.engine.schedule import CONSTANT
from draftproof.engine.tiers import NUMERICS, refuse_unanchored, resolve_numerics
from draftproof.errors import InputError, UnsupportedArgumentError
from draftproof.executors.choice import (
    bind_part,
    choose,
    eos_of,
    load_part,
    provenance,
    runtime_of,
    warn_of_defaults,
)
from draftproof.executors.use import ModelUse
from draftproof.hf import Change, load_tokenizer
from draftproof.numerics.shapes import FAST
from draftproof.options import Options, given
from draftproof.requests import make_requests
from draftproof.results import Reporter
from draftproof.sampling import as_ids, probability, whole_number
from draftproof.text import Prompt, as_prompts, decode, encode, require_same_vocabulary
from draftproof.types import Result, StreamEvent


@dataclass(frozen=True, slots=True)
class Job:
    """Requests, and the engine made by a plan that will run them."""

    requests: list[Request]
    plan: Blueprint
    engine: Engine
    auditor: Auditor | None = None


def load(
    target: str | Path,
    draft: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    numerics: str = "auto",
    method: str = "rows",
    method_options: dict[str, Any] | None = None,
    executor: str = "torch",
    draft_executor: str | None = None,
    executor_options: dict[str, Any] | None = None,
    script_layers: bool = True,
    prompt_lookup_max: int = 3,
    prompt_lookup_min: int = 1,
    model_kwargs: dict[str, Any] | None = None,
    draft_kwargs: dict[str, Any] | None = None,
) -> Pair:
    """Load a target and a draft from folders or hub ids.

    draft:         a model, "ngram" for prompt lookup, or None for plain decoding
    method:        "rows", or the paper's "eqspec", "exspec", "rollback", with method_options of
                   exspec: window_size, sort_by_length, policy, waiting_limit
    executor:      "torch", or "openvino" (docs/openvino.md) with executor_options kv_cache_dtype,
                   num_threads, draft_weights; draft_executor: of the draft, by default the same
    script_layers: Llama-like layers as one TorchScript function, see docs/speed.md
    dtype:         "float32", "bfloat16", "float16", or "auto": what the checkpoint says
    model_kwargs:  handed to `from_pretrained` of the target (device_map, quantization_config,
                   revision, ...); draft_kwargs: of the draft, by default the same

    Raises InputError, UnsupportedModelError, VocabularyError or NumericsError before any work.
    """
    two = draft is not None and draft != "ngram"
    runs = choose(executor, draft_executor, executor_options, drafts=two)
    options = dict(model_kwargs or {})
    common: dict[str, Any] = {"dtype": dtype, "device": device, "options": executor_options}
    common["script_layers"] = script_layers
    fast = numerics == "fast"  # only then are there kernels for single rows; drafts always are
    model = load_part(str(target), runs[0], model_kwargs=options, lone_row=fast, **common)
    warn_of_defaults(model)
    tokenizer = load_tokenizer(str(target))
    helper, draft_tokenizer = None, None
    if two:
        extra = options if draft_kwargs is None else draft_kwargs
        helper = load_part(str(draft), runs[1], model_kwargs=extra, drafts=True, **common)
        draft_tokenizer = load_tokenizer(str(draft))
    return Pair(
        model,
        "ngram" if draft == "ngram" else helper,
        tokenizer=tokenizer,
        draft_tokenizer=draft_tokenizer,
        numerics=numerics,
        method=method,
        method_options=method_options,
        executor=executor,
        draft_executor=draft_executor,
        executor_options=executor_options,
        prompt_lookup_max=prompt_lookup_max,
        prompt_lookup_min=prompt_lookup_min,
    )


class Pair:
    """A target and whatever drafts for it, ready to decode batches.

    target, draft:  loaded transformers models (draft also "ngram", a `Drafter`, or None)
    tokenizer:      of the target; without one prompts are token ids and results have no text
    method:         a name as in `load`, or a `Method` of one's own

    The models stay ordinary transformers models: they may be used and trained beside the pair,
    which takes changed weights over before its next run, and `close` (or the end of a `with`
    block) gives them back as they were.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        *,
        tokenizer: Any = None,
        draft_tokenizer: Any = None,
        numerics: str = "auto",
        method: str | Method = "rows",
        method_options: dict[str, Any] | None = None,
        executor: str = "torch",
        draft_executor: str | None = None,
        executor_options: dict[str, Any] | None = None,
        prompt_lookup_max: int = 3,
        prompt_lookup_min: int = 1,
    ) -> None:
        two = _is_model(draft)
        runs = choose(executor, draft_executor, executor_options, drafts=two)
        _choose("numerics", numerics, NUMERICS)
        if tokenizer is not None and draft_tokenizer is not None:
            require_same_vocabulary(tokenizer, draft_tokenizer)
        self.tokenizer = tokenizer
        self._method = _resolve_method(method, method_options)
        self._target = bind_part(target, runs[0], executor_options)
        ngram = Ngram(prompt_lookup_max=prompt_lookup_max, prompt_lookup_min=prompt_lookup_min)
        self._draft = _bind_draft(draft, ngram, runs[1], executor_options)
        self.executor = runtime_of(self._target)
        self.draft_executor = runtime_of(self._draft) if two else None
        refuse_unanchored(self._method, self._target, self._draft)
        parts, given = (self._target, self._draft), zip((target, draft), runs, strict=True)
        self._use = ModelUse(parts, [model for model, run in given if run == "openvino"])
        self._wish = numerics
        self._resolve()
        self._eos = as_ids(eos_of(self._target))
        self.auto_k = AutoKState()  # costs that auto-K has measured

    def _resolve(self) -> None:
        found = resolve_numerics(self._wish, self._target, self._method)
        self.numerics, self._shapes, self._why = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the models back as they were; runs that are not finished raise InputError."""
        self._use.close()

    def refresh(self) -> None:
        """Take the models' weights over now, whether they seem to have changed or not.

        Every run does so by itself where it notices a change; docs/numerics.md says what it may
        miss.
        """
        self._use.update(force=True)
        self._resolve()

    def __reduce__(self) -> Any:
        raise InputError(
            "a Pair cannot be copied or pickled: it holds packed weights of this process; make one "
            "where it is needed, with draftproof.load or Pair(model, ...)"
        )

    __copy__ = __deepcopy__ = lambda self, *_: self.__reduce__()

    @property
    def method(self) -> str:
        """Name of the method."""
        return self._method.name

    @property
    def vocab_size(self) -> int:
        """Size of the target's embedding."""
        return self._target.vocab_size

    @property
    def max_model_len(self) -> int | None:
        """Context length of the target, None when its config does not say."""
        return self._target.max_positions

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a row unless a call says otherwise."""
        return self._eos

    def describe(self) -> dict[str, Any]:
        """The settings as they run, for reports."""
        return {
            "target": name_of(self._target),
            "draft": name_of(self._draft),
            "dtype": str(self._target.dtype).removeprefix("torch."),
            "device": str(self._target.device),
            "method": self.method,
            "method_options": asdict(self._method),
            "executor": self.executor,
            "draft_executor": self.draft_executor,
            "numerics": self.numerics,
            "numerics_reason": self._why,
            **provenance(self._target),
        }

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of one prompt. Raises InputError when it cannot be decoded from."""
        ids = encode(self.tokenizer, prompt, self.vocab_size)
        if self.max_model_len is not None and len(ids) > self.max_model_len:
            raise InputError(
                f"the prompt has {len(ids)} tokens, the target's context {self.max_model_len}"
            )
        return ids

    def generate(self, prompts: Sequence[Prompt], **options: Unpack[Options]) -> list[Result]:
        """Decode all prompts; results in the order of the prompts.

        prompts: strings, lists of token ids, or lists of chat messages. See `Options`.
        Raises InputError, naming the prompt, before any work starts.
        """
        results = self.as_completed(prompts, **options)
        return sorted(results, key=lambda result: (result.index, result.sequence))

    def as_completed(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> Iterator[Result]:
        """Each result as soon as its row finishes; `result.index` says which prompt it is."""
        job = self.prepare(prompts, **options)
        return self._reporter(options, job.auditor).results(self._run(job))

    def stream(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> Iterator[StreamEvent]:
        """Tokens of every row as they are committed; the last event of a row has its result."""
        job = self.prepare(prompts, **options)
        return self._reporter(options, job.auditor).events(self._run(job))

    def _run(self, job: Job) -> Iterator[list[Commit]]:
        for request in job.requests:
            job.engine.add(request)
        return self._use.rounds(job.engine.run())

    def _reporter(self, options: Options, auditor: Auditor | None = None) -> Reporter:
        audit = {} if auditor is None else {"audit": self._use.beside(auditor.check)}
        limit = getattr(self._draft, "max_positions", None)
        return Reporter(
            draft_limit=limit,
            **audit,
            tokenizer=self.tokenizer,
            mode=self._mode(options),
            numerics=self.numerics,
            executor=self.executor,
            vocab_size=self.vocab_size,
            device=self._target.device,
        )

    def prepare(self, prompts: Sequence[Prompt], **options: Unpack[Options]) -> Job:
        """The engine that `generate` would run and its requests, for whoever drives it himself."""
        options = given(options)
        if self._use.update() is Change.STRUCTURE:
            self._resolve()
        requests = self._use.alone(lambda: self._requests(prompts, options))
        plan = self._blueprint(requests, options)
        auditor = self._auditor(plan, options)
        if auditor is None:
            return Job(requests, plan, assemble(plan))
        plan = replace(plan, observers=(*plan.observers, auditor))
        return Job([auditor.watch(r) for r in requests], plan, assemble(plan), auditor)

    def _auditor(self, plan: Blueprint, options: Options) -> Auditor | None:
        share = checked_share(options.get("audit", 0.0))
        if not share:
            return None
        dtype = str(self._target.dtype).removeprefix("torch.")
        engine = assemble(plan.plain())
        return Auditor(share=share, engine=engine, numerics=self.numerics, dtype=dtype)

    def _requests(self, prompts: Sequence[Prompt], options: Options) -> list[Request]:
        prompts = as_prompts(prompts)
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            raise UnsupportedArgumentError(f"unknown option {', '.join(sorted(unknown))}")
        encoded = [self._encode_numbered(index, prompt) for index, prompt in enumerate(prompts)]
        requests = make_requests(encoded, options, self._eos, self.vocab_size)
        if self.tokenizer is None and any(r.settings.stop_strings for r in requests):
            raise InputError("stop_strings need a tokenizer")
        if self._method.discards and any(r.settings.logits_processor for r in requests):
            raise UnsupportedArgumentError(
                f"logits_processor with method={self.method!r}, which takes back tokens that a "
                "processor has seen; use method='rows'"
            )
        return requests

    def _encode_numbered(self, index: int, prompt: Prompt) -> list[int]:
        try:
            return self.encode(prompt)
        except InputError as error:
            raise InputError(f"prompt {index}: {error}") from error

    def _blueprint(self, requests: Sequence[Request], options: Options) -> Blueprint:
        rows = whole_number("max_num_seqs", options.get("max_num_seqs", 8), 1)
        name = options.get("num_speculative_tokens_schedule")
        default = default_k(name, anchored=self._method.anchored)
        wish = options.get("num_speculative_tokens", default)
        most = options.get("max_num_speculative_tokens", 8)
        drafted, schedule = drafting(wish, name, most, self.auto_k)
        budget = whole_number(
            "max_num_batched_tokens", options.get("max_num_batched_tokens", 512), 1
        )
        return Blueprint(
            target=self._target,
            draft=self._draft,
            target_shapes=self._shapes,
            draft_shapes=FAST,  # what a draft guesses never changes the output
            max_num_seqs=min(rows, max(1, len(requests))),
            max_model_len=self._capacity(requests, options.get("max_model_len")),
            num_speculative_tokens=drafted,
            max_num_batched_tokens=budget,
            schedule=CONSTANT if self._draft is None else schedule,
            confidence_threshold=probability(
                "assistant_confidence_threshold", options.get("assistant_confidence_threshold", 0.0)
            ),
            decode=self._decode if self.tokenizer is not None else None,
            observers=options.get("observers", ()),
            debug=options.get("debug", False),
            method=self._method,
            max_requests=len(requests),
            shares_prefixes=options.get("enable_prefix_caching", True),
        )

    def _capacity(self, requests: Sequence[Request], wanted: int | None) -> int:
        """Tokens per row: what the longest request needs, within the context and the wish.

        The last token of a row is never cached.
        """
        if wanted is not None:
            wanted = whole_number("max_model_len", wanted, 1)
        allowed = [n for n in (wanted, self.max_model_len) if n is not None]
        if not requests:
            return min(allowed, default=1)
        longest = max(len(r.prompt) + r.settings.max_new_tokens - 1 for r in requests)
        for request in requests:
            if len(request.prompt) > min(allowed, default=len(request.prompt)):
                raise InputError(
                    f"prompt {request.origin} has {len(request.prompt)} tokens, more than "
                    f"max_model_len {min(allowed)}"
                )
        return max(1, min([longest, *allowed]), max(len(r.prompt) for r in requests))

    def _decode(self, ids: list[int]) -> str:
        return decode(self.tokenizer, ids, skip_special_tokens=False)

    def _mode(self, options: Options) -> str:
        if self._draft is None:
            return "plain: no draft"
        if options.get("num_speculative_tokens") == 0:
            return "plain: num_speculative_tokens is 0"
        return "speculative"


def _choose(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UnsupportedArgumentError(f"{name}={value!r}; choose one of {', '.join(allowed)}")


def _resolve_method(method: str | Method, options: dict[str, Any] | None) -> Method:
    return method_named(method, options) if isinstance(method, str) else method


def _bind_draft(draft: Any, ngram: Ngram, executor: str, options: dict[str, Any] | None) -> Any:
    """A `BoundModel`, `ForeignModel`, `Ngram`, `Drafter`, or None."""
    if isinstance(draft, str):
        _choose("draft", draft, ("ngram",))
        return ngram
    return bind_part(draft, executor, options, drafts=True) if _is_model(draft) else draft


def _is_model(draft: Any) -> bool:
    return not (draft is None or isinstance(draft, str) or hasattr(draft, "propose"))
