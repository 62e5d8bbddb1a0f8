"""`custom_generate`: from the arguments of `generate` to a `Pair` and back."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from draftproof.api import Pair
from draftproof.auto_k.options import AUTO
from draftproof.dropin.processors import Context, for_rows, read
from draftproof.dropin.returning import Columns, returned
from draftproof.dropin.settings import refuse_settings, warn_of_context
from draftproof.errors import AuditError, InputError, UnsupportedArgumentError
from draftproof.executors.choice import bind_and_keep
from draftproof.hf import BoundModel, further_criteria, generate_arguments
from draftproof.hf.capability import refuse_virtual_tokens
from draftproof.options import Options
from draftproof.sampling import as_ids
from draftproof.types import Result

# model inputs that `generate` prepares for its own loop and that this one derives itself
DERIVED = {
    "attention_mask",
    "position_ids",
    "cache_position",
    "use_cache",
    "logits_to_keep",
    "num_logits_to_keep",
    "cache",
    "past_key_values",
}


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    assistant_model: Any = None,
    max_num_seqs: int | None = None,
    num_speculative_tokens: int | Literal["auto"] | None = None,
    numerics: str = "auto",
    seed: int | None = None,
    coupling: str | None = None,
    audit: float = 0.0,
    **model_kwargs: Any,
) -> Any:
    """Batched speculative decoding behind transformers' `generate`, for any batch size.

    input_ids:        [B, L] int64, left-padded; `attention_mask` says where rows begin
    assistant_model:  the draft, as in `generate`; or `prompt_lookup_num_tokens` for n-gram drafts
    num_speculative_tokens: K, or "auto"; default `num_assistant_tokens` of the draft's generation
                      config, `prompt_lookup_num_tokens`, or 4
    max_num_seqs:     rows decoded at a time; default: the whole batch
    seed, coupling:   of sampled rows, see `RequestOptions`; without a seed torch's global
                      generator decides, as in `generate`
    audit:            share of rows decoded again, plain and alone, and compared

    Returns what `generate` returns: [B, L + longest] ids, finished rows padded with the pad id, or
    a `GenerateDecoderOnlyOutput` with `return_dict_in_generate=True`.
    Raises AuditError after decoding when an audited row is not what the target alone writes, and
    UnsupportedArgumentError, by name, for whatever would change the output and is not done,
    UnsupportedModelError for virtual tokens that an adapter puts in front of prompts.
    """
    refuse_virtual_tokens(model)
    # generate() keeps these back from callables, and hands them only to its own modes
    given = generate_arguments(("assistant_model", "streamer"))
    assistant_model = assistant_model if assistant_model is not None else given["assistant_model"]
    _refuse(generation_config, model_kwargs)
    draft, drafting = _draft(assistant_model, generation_config, num_speculative_tokens)
    copies = generation_config.num_return_sequences or 1
    rows = _prompts(input_ids, model_kwargs.get("attention_mask"))
    prompts = rows[::copies]  # generate() has repeated each prompt already
    context = _context(prompts, input_ids.shape[1], generation_config)
    options: Options = {
        **_settings(generation_config, input_ids.shape[1], context.eos),
        **_callables(logits_processor, stopping_criteria, context),
        **drafting,
        "num_return_sequences": copies,
        "seed": seed,
        "coupling": coupling,
        "max_num_seqs": max_num_seqs or len(rows),
        "audit": audit,
    }
    lookup = getattr(generation_config, "max_matching_ngram_size", None) or 2
    pair = _pair(model, draft, numerics, lookup)
    warn_of_context(pair.max_model_len, rows, generation_config.max_length - input_ids.shape[1])
    results = _run(pair, prompts, options, Columns(given["streamer"], len(rows), context.pad))
    return returned(input_ids, results, context.pad, generation_config)


def _pair(model: Any, draft: Any, numerics: str, lookup: int) -> Pair:
    """Models are made ready once and kept with themselves, and so is what auto-K learnt of both."""
    target = bind_and_keep(model)
    helper = draft if draft is None or isinstance(draft, str) else bind_and_keep(draft)
    companion = helper.model if isinstance(helper, BoundModel) else target.model
    pair = Pair(target, helper, numerics=numerics, prompt_lookup_max=lookup)
    pair.auto_k = target.companions.setdefault(companion, pair.auto_k)
    return pair


def _run(pair: Pair, prompts: list[list[int]], options: Options, columns: Columns) -> list[Result]:
    """Decode, feeding the streamer on the way; results in the order of the rows."""
    copies, results = columns.rows // len(prompts), {}
    for event in pair.stream(prompts, **options):
        row = event.index * copies + event.sequence
        columns.add(row, event)
        if event.result is not None:
            results[row] = event.result
    columns.end()
    ordered = [results[row] for row in sorted(results)]
    _refuse_failed_audits(ordered)
    return ordered


def _refuse_failed_audits(results: list[Result]) -> None:
    for row, result in enumerate(results):
        audit = result.audited
        if audit is not None and audit.failed:
            raise AuditError(
                f"row {row}: new token {audit.position} is not what the target alone writes "
                f"({audit.reason})"
            )


def _refuse(config: Any, model_kwargs: dict[str, Any]) -> None:
    refuse_settings(config)
    unknown = {name for name, value in model_kwargs.items() if value is not None} - DERIVED
    if unknown:
        raise UnsupportedArgumentError(
            f"{', '.join(sorted(unknown))} not supported by custom_generate"
        )
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise UnsupportedArgumentError(f"{name} with content is not supported")


def _context(prompts: list[list[int]], width: int, config: Any) -> Context:
    eos = as_ids(config.eos_token_id)
    pad = config.pad_token_id
    return Context(
        padding=[width - len(prompt) for prompt in prompts],
        pad=next(iter(eos), 0) if pad is None else int(pad),
        eos=eos,
        width=width,
        sampled=bool(config.do_sample),
    )


def _settings(config: Any, width: int, eos: tuple[int, ...]) -> Options:
    recorded = bool(config.return_dict_in_generate)
    return {
        "max_new_tokens": config.max_length - width,
        "eos_token_id": eos,
        "do_sample": bool(config.do_sample),
        "output_scores": recorded and bool(config.output_scores),
        "output_logits": recorded and bool(config.output_logits),
    }


def _callables(processors: Any, criteria: Any, context: Context) -> Options:
    """Processors as settings or as they are, and the criteria besides length and eos."""
    reading = read(list(processors or ()), context)
    called: Options = {
        "logits_processor": for_rows(reading.others, context),
        "stopping_criteria": for_rows(further_criteria(criteria), context),
    }
    return {**reading.options, **called}  # type: ignore[typeddict-item]


def _draft(assistant: Any, config: Any, wish: int | str | None) -> tuple[Any, Options]:
    """The drafter and how far it drafts, from the arguments transformers itself knows."""
    lookup = getattr(config, "prompt_lookup_num_tokens", None)
    if assistant is not None:
        own = assistant.generation_config
        options: Options = {
            "num_speculative_tokens": _first(wish, getattr(own, "num_assistant_tokens", None)),
            "assistant_confidence_threshold": (
                getattr(own, "assistant_confidence_threshold", None) or 0.0
            ),
        }
        schedule = getattr(own, "num_assistant_tokens_schedule", None) or "constant"
        if schedule != "constant" and options["num_speculative_tokens"] != AUTO:
            options["num_speculative_tokens_schedule"] = "adaptive"
        return assistant, options
    if lookup is not None:
        return "ngram", {"num_speculative_tokens": _first(wish, lookup)}
    return None, {"num_speculative_tokens": 0}


def _first(*values: int | str | None) -> int | Literal["auto"]:
    value = next((value for value in values if value is not None), 4)
    return AUTO if value == AUTO else int(value)


def _prompts(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    """Rows without their padding. The mask alone says what is padding, never a token's id."""
    if mask is None:
        rows: list[list[int]] = input_ids.tolist()
        return rows
    visible = mask.bool()
    if bool((visible.int().diff(dim=1) < 0).any()):
        raise InputError("attention_mask: rows must be padded on the left, without holes")
    if not bool(visible.any(dim=1).all()):
        raise InputError("attention_mask: a row is all padding")
    return [ids[keep].tolist() for ids, keep in zip(input_ids, visible, strict=True)]
