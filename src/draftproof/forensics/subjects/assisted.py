"""transformers' own `generate` as a subject: plain, batched with left padding, or assisted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from draftproof.forensics.subjects.base import (
    OWN,
    Ability,
    Answer,
    Counters,
    Inquiry,
    Run,
    Setup,
    Task,
)
from draftproof.forensics.subjects.casting import cast
from draftproof.forensics.subjects.watching import tops_of
from draftproof.sampling import as_ids

GENERATE_ERRORS = (ValueError, RuntimeError, IndexError, TypeError)


@dataclass(kw_only=True)
class TransformersSubject:
    """A model, and perhaps an assistant, which transformers allows for one row at a time only.

    model:     a loaded causal language model; runs in the dtype it was loaded in
    assistant: a loaded draft model, or None for plain decoding
    """

    name: str
    target: Any
    assistant: Any = None
    tokenizer: Any = None
    batch: int = 1
    k: int | None = 0
    _casts: dict[str, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    abilities: ClassVar[frozenset[Ability]] = frozenset(
        {Ability.BATCH, Ability.K, Ability.FLOAT32, Ability.TOPS, Ability.PROMPTS}
    )

    @property
    def model(self) -> Any:
        """The target."""
        return self.target

    def model_as(self, dtype: str) -> tuple[Any, Any]:
        """Target and assistant in another dtype."""
        if dtype not in self._casts:
            self._casts[dtype] = (cast(self.target, dtype), cast(self.assistant, dtype))
        return self._casts[dtype]

    def settings(self) -> dict[str, Any]:
        """As it runs."""
        return {
            "kind": "transformers",
            "target": type(self.target).__name__,
            "assistant": None if self.assistant is None else type(self.assistant).__name__,
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "attention": self.target.config._attn_implementation,
            "batch": self.batch,
            "k": self.k,
        }

    def run(self, inquiry: Inquiry, setup: Setup = OWN) -> Run:
        """Batch by batch; a batch that transformers refuses is an error of its rows."""
        size = setup.batch or self.batch
        target, assistant = self.target, self.assistant
        if setup.dtype is not None:
            target, assistant = self.model_as(setup.dtype)
        k = self.k if setup.k is None else setup.k
        helper, counter = (assistant, _Calls(assistant)) if assistant and k else (None, None)
        answers: list[Answer] = []
        for first in range(0, len(inquiry.tasks), size):
            answers += self._group(target, helper, k, inquiry, inquiry.tasks[first : first + size])
        return Run(answers=tuple(answers), counters=_counters(answers, counter))

    def _group(
        self, target: Any, helper: Any, k: int | None, inquiry: Inquiry, tasks: Sequence[Task]
    ) -> list[Answer]:
        options = self._options(target, inquiry)
        if helper is not None:
            helper.generation_config.num_assistant_tokens = k
            helper.generation_config.num_assistant_tokens_schedule = "constant"
            helper.generation_config.assistant_confidence_threshold = 0.0
            options["assistant_model"] = helper
        ids, mask = _left_padded(tasks, target.device)
        try:
            out = target.generate(ids, attention_mask=mask, **options)
        except GENERATE_ERRORS as error:
            return [Answer(error=f"{type(error).__name__}: {error}") for _ in tasks]
        ends = options["eos_token_id"] or ()
        # logits: per step [B, V]
        steps = [tops_of(step) for step in out.logits]
        new = out.sequences[:, ids.shape[1] :].tolist()
        return [_answer(row, line, steps, ends) for row, line in enumerate(new)]

    def _options(self, target: Any, inquiry: Inquiry) -> dict[str, Any]:
        ends = inquiry.eos_token_id
        if ends is None:
            ends = as_ids(target.generation_config.eos_token_id)
        options: dict[str, Any] = {
            "max_new_tokens": inquiry.max_new_tokens,
            "do_sample": False,
            "eos_token_id": list(ends) or None,
            "pad_token_id": 0,
            "return_dict_in_generate": True,
            "output_logits": True,
        }
        if inquiry.min_new_tokens:
            options["min_new_tokens"] = inquiry.min_new_tokens
        if inquiry.stop_strings:
            options |= {"stop_strings": list(inquiry.stop_strings), "tokenizer": self.tokenizer}
        return options


def _answer(row: int, line: list[int], steps: list[list[Any]], ends: Sequence[int]) -> Answer:
    """Without the padding behind a row that ended before its neighbours."""
    stop = next((n for n, token in enumerate(line) if token in ends), None)
    ids = tuple(line if stop is None else line[: stop + 1])
    tops = tuple(step[row] for step in steps[: len(ids)])
    return Answer(ids=ids, tops=tops, finish_reason="length" if stop is None else "eos")


def _left_padded(tasks: Sequence[Task], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, [B, L]."""
    width = max(len(task.prompt) for task in tasks)
    ids = [[0] * (width - len(task.prompt)) + list(task.prompt) for task in tasks]
    mask = [[0] * (width - len(t.prompt)) + [1] * len(t.prompt) for t in tasks]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class _Calls:
    """Counts the forwards of an assistant: each of them drafts one token."""

    def __init__(self, model: Any) -> None:
        self.count = 0
        self.hook = model.register_forward_hook(self._called)

    def _called(self, *args: Any) -> None:
        self.count += 1


def _counters(answers: Sequence[Answer], calls: _Calls | None) -> Counters:
    if calls is None:
        return Counters(drafted=0, accepted=0, rounds=0, source="transformers, plain")
    calls.hook.remove()
    return Counters(drafted=calls.count, source="forwards of the assistant")
