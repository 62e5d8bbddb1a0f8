"""Models and requests on which a fault must show: tiny random models, or the demo pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from draftproof.faultlab.faults import Condition, Fault
from draftproof.faultlab.faulty_engine import FaultyEngine
from draftproof.faultlab.run_cache import CachedEngine, RunCache
from draftproof.forensics.subjects.base import Inquiry, Task
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.testing import noisy_copy, random_prompts, tiny_model, tiny_tokenizer

LENGTHS = (3, 11, 19, 6)  # unlike each other, and none of them a multiple of anything
BATCH, K, NEW = 4, 3, 17
DEMO_NEW = 64  # a trained model is sure of most tokens: a fault needs longer to show
NUMERICS = "fast"  # faults are of logic: in float32 the tokens are the same with either numerics
VOCABULARY, DRAWS = 7, 1500  # of the sampled condition


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A target, a draft that is often right, and what they are asked.

    name:             shown in the matrix
    workshop, cache: what its subjects share; a plain reference answers each question anew only
                      as often as one examination asks it
    """

    name: str
    target: Any
    draft: Any
    tokenizer: Any
    inquiry: Inquiry
    batch: int = BATCH
    k: int = K
    workshop: Workshop = field(default_factory=Workshop, repr=False)
    cache: RunCache = field(default_factory=RunCache, repr=False)

    def reference(self) -> EngineSubject:
        """Plain, one row at a time."""
        return CachedEngine(
            name=f"{self.name}: plain",
            target=self.target,
            tokenizer=self.tokenizer,
            batch=1,
            k=0,
            options={"numerics": NUMERICS},
            workshop=self.workshop,
            cache=self.cache,
        )

    def candidate(self, fault: Fault | None = None, **changes: Any) -> FaultyEngine:
        """Speculative and batched, with a fault or without."""
        ways: dict[str, Any] = {"numerics": NUMERICS}
        if fault is not None and fault.method is not None:
            ways["method"] = fault.method
        options = {
            "batch": self.batch,
            "k": self.k,
            "draft": self.draft,
            "options": ways,
            **changes,
        }
        return FaultyEngine(
            name=f"{self.name}: {fault.name if fault else 'correct'}",
            target=self.target,
            tokenizer=self.tokenizer,
            rig=fault.rig if fault else None,
            deliver=fault.deliver if fault else None,
            workshop=self.workshop,
            **options,
        )


def quick_scenario(condition: Condition) -> Scenario:
    """`tiny_scenario` with one layer: every fault bites there too, in half the time."""
    return tiny_scenario(condition, layers=1)


def tiny_scenario(condition: Condition, layers: int = 2) -> Scenario:
    """A scenario of tiny random models, float32, for one condition."""
    if condition is Condition.SAMPLING:
        return sampling_scenario()
    architecture = "mistral" if condition is Condition.WINDOW else "llama"
    tokenizer = tiny_tokenizer() if condition is Condition.STOP else None
    sized = {"num_hidden_layers": layers}
    if tokenizer is not None:
        sized["vocab_size"] = len(tokenizer)
    target = tiny_model(architecture, **sized)
    draft = noisy_copy(target)
    if condition is Condition.TIES:
        target, draft = _tying(target), _tying(draft)
    scenario = Scenario(
        name="tiny",
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        inquiry=_inquiry(random_prompts(LENGTHS)),
    )
    return set_up(scenario, condition)


def sampling_scenario() -> Scenario:
    """Draws of three tokens from a vocabulary of seven, by a draft that is far off."""
    target = tiny_model("llama", vocab_size=VOCABULARY)
    tasks = tuple(Task(index=i, prompt=(1, 4, 2)) for i in range(DRAWS))
    return Scenario(
        name="tiny",
        target=target,
        draft=noisy_copy(target, amount=0.6),
        tokenizer=None,
        inquiry=Inquiry(tasks=tasks, max_new_tokens=4, eos_token_id=(), temperature=0.6),
        batch=250,
    )


@torch.no_grad()
def _tying(model: Any) -> Any:
    """Give every odd token the logits of the even one before it: exact ties everywhere."""
    weight = model.lm_head.weight  # [V, H]
    pairs = weight.shape[0] // 2
    weight[1 : 2 * pairs : 2] = weight[0 : 2 * pairs : 2]
    return model


def demo_scenario(condition: Condition) -> Scenario | None:
    """The same on the embedded demo pair; None for conditions that need another model."""
    if condition in (Condition.WINDOW, Condition.TIES, Condition.SAMPLING):
        return None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from draftproof.models import DEMO_PROMPTS, demo_paths

    folders = [str(path) for path in demo_paths()]
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in folders
    )
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    prompts = [tokenizer(text)["input_ids"] for text in DEMO_PROMPTS[2:6]]
    scenario = Scenario(
        name="demo",
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        inquiry=_inquiry(prompts, DEMO_NEW),
    )
    return set_up(scenario, condition)


def _inquiry(prompts: Sequence[Sequence[int]], new: int = NEW) -> Inquiry:
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    return Inquiry(tasks=tasks, max_new_tokens=new, eos_token_id=())


# -- conditions ------------------------------------------------------------------------------------


def set_up(scenario: Scenario, condition: Condition) -> Scenario:
    """Change the requests so that the condition's faults can bite; outputs decide how."""
    changes = {
        Condition.EOS: _ends_early,
        Condition.STOP: _stops,
        Condition.MARKED: _marked,
        Condition.MINIMUM: _minimum,
    }
    if condition not in changes:
        return scenario
    outputs = scenario.reference().run(scenario.inquiry).ids
    return replace(scenario, inquiry=changes[condition](scenario, outputs))


def _ends_early(scenario: Scenario, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """Declare tokens that rows emit early, at different places, to be eos."""
    ends = tuple({ids[3 + row] for row, ids in enumerate(outputs)})
    return replace(scenario.inquiry, eos_token_id=ends)


def _minimum(scenario: Scenario, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """A minimum that is reached in the middle of blocks, and an eos right behind it."""
    least = 6
    ends = tuple({ids[least] for ids in outputs})
    return replace(scenario.inquiry, eos_token_id=ends, min_new_tokens=least)


def _marked(scenario: Scenario, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """An eos that nobody emits, inside every other prompt."""
    used = {token for ids in outputs for token in ids}
    used |= {token for task in scenario.inquiry.tasks for token in task.prompt}
    eos = next(token for token in range(5, 1000) if token not in used)
    tasks = tuple(
        replace(task, prompt=(task.prompt[0], eos, *task.prompt[1:])) if task.index % 2 else task
        for task in scenario.inquiry.tasks
    )
    return replace(scenario.inquiry, tasks=tasks, eos_token_id=(eos,))


def _stops(scenario: Scenario, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """Stop strings that end in the middle of blocks, at a different place in each row."""
    ends = [list(ids[4 + row : 6 + row]) for row, ids in enumerate(outputs)]
    stops = [scenario.tokenizer.decode(ids) for ids in ends]
    return replace(scenario.inquiry, stop_strings=tuple(stop for stop in stops if stop.strip()))
