"""Models and requests on which a fault must show: tiny random models, or the demo pair."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from draftproof.forensics.faults import Fault, Scene
from draftproof.forensics.subjects.base import Inquiry, Task
from draftproof.forensics.subjects.engine import EngineSubject
from draftproof.forensics.subjects.remembering import Memory, Remembering
from draftproof.forensics.subjects.workshop import Workshop
from draftproof.testing import random_prompts, tiny_model, tiny_tokenizer

LENGTHS = (3, 11, 19, 6)  # unlike each other, and none of them a multiple of anything
BATCH, K, NEW = 4, 3, 17
DEMO_NEW = 64  # a trained model is sure of most tokens: a fault needs longer to show
NUMERICS = "fast"  # faults are of logic: in float32 the tokens are the same with either numerics
VOCABULARY, DRAWS = 7, 1500  # of the sampled scene
NOISE = 0.15  # of a draft that agrees with its target about half of the time


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A target, a draft that is often right, and what they are asked.

    name:             shown in the matrix
    workshop, memory: what its subjects share; a plain reference answers each question anew only
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
    memory: Memory = field(default_factory=Memory, repr=False)

    def reference(self) -> EngineSubject:
        """Plain, one row at a time."""
        return Remembering(
            name=f"{self.name}: plain",
            target=self.target,
            tokenizer=self.tokenizer,
            batch=1,
            k=0,
            options={"numerics": NUMERICS},
            workshop=self.workshop,
            memory=self.memory,
        )

    def candidate(self, fault: Fault | None = None, **changes: Any) -> EngineSubject:
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
        return EngineSubject(
            name=f"{self.name}: {fault.name if fault else 'correct'}",
            target=self.target,
            tokenizer=self.tokenizer,
            fault=fault.rig if fault else None,
            deliver=fault.deliver if fault else None,
            workshop=self.workshop,
            **options,
        )


@torch.no_grad()
def leaning(model: Any, noise: float = NOISE, seed: int = 0) -> Any:
    """A copy that says the same as `model` some of the time: weights plus noise."""
    draft, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.ndim >= 2:
            kick = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.add_(kick * parameter.std() * noise)
    return draft


def quick_stage(scene: Scene) -> Stage:
    """`tiny_stage` with one layer: every fault bites there too, in half the time."""
    return tiny_stage(scene, layers=1)


def tiny_stage(scene: Scene, layers: int = 2) -> Stage:
    """A stage of tiny random models, float32, for one scene."""
    if scene is Scene.SAMPLING:
        return sampling_stage()
    architecture = "mistral" if scene is Scene.WINDOW else "llama"
    tokenizer = tiny_tokenizer() if scene is Scene.STOP else None
    sized = {"num_hidden_layers": layers}
    if tokenizer is not None:
        sized["vocab_size"] = len(tokenizer)
    target = tiny_model(architecture, **sized)
    draft = leaning(target)
    if scene is Scene.TIES:
        target, draft = _tying(target), _tying(draft)
    stage = Stage(
        name="tiny",
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        inquiry=_inquiry(random_prompts(LENGTHS)),
    )
    return set_up(stage, scene)


def sampling_stage() -> Stage:
    """Draws of three tokens from a vocabulary of seven, by a draft that is far off."""
    target = tiny_model("llama", vocab_size=VOCABULARY)
    tasks = tuple(Task(index=i, prompt=(1, 4, 2)) for i in range(DRAWS))
    return Stage(
        name="tiny",
        target=target,
        draft=leaning(target, noise=0.6),
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


def demo_stage(scene: Scene) -> Stage | None:
    """The same on the embedded demo pair; None for scenes that need another model."""
    if scene in (Scene.WINDOW, Scene.TIES, Scene.SAMPLING):
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
    stage = Stage(
        name="demo",
        target=target,
        draft=draft,
        tokenizer=tokenizer,
        inquiry=_inquiry(prompts, DEMO_NEW),
    )
    return set_up(stage, scene)


def _inquiry(prompts: Sequence[Sequence[int]], new: int = NEW) -> Inquiry:
    tasks = tuple(Task(index=i, prompt=tuple(ids)) for i, ids in enumerate(prompts))
    return Inquiry(tasks=tasks, max_new_tokens=new, eos_token_id=())


# -- scenes ----------------------------------------------------------------------------------------


def set_up(stage: Stage, scene: Scene) -> Stage:
    """Change the requests so that the scene's faults can bite; outputs decide how."""
    changes = {
        Scene.EOS: _ends_early,
        Scene.STOP: _stops,
        Scene.MARKED: _marked,
        Scene.MINIMUM: _minimum,
    }
    if scene not in changes:
        return stage
    outputs = stage.reference().run(stage.inquiry).ids
    return replace(stage, inquiry=changes[scene](stage, outputs))


def _ends_early(stage: Stage, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """Declare tokens that rows emit early, at different places, to be eos."""
    ends = tuple({ids[3 + row] for row, ids in enumerate(outputs)})
    return replace(stage.inquiry, eos_token_id=ends)


def _minimum(stage: Stage, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """A minimum that is reached in the middle of blocks, and an eos right behind it."""
    least = 6
    ends = tuple({ids[least] for ids in outputs})
    return replace(stage.inquiry, eos_token_id=ends, min_new_tokens=least)


def _marked(stage: Stage, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """An eos that nobody emits, inside every other prompt."""
    used = {token for ids in outputs for token in ids}
    used |= {token for task in stage.inquiry.tasks for token in task.prompt}
    eos = next(token for token in range(5, 1000) if token not in used)
    tasks = tuple(
        replace(task, prompt=(task.prompt[0], eos, *task.prompt[1:])) if task.index % 2 else task
        for task in stage.inquiry.tasks
    )
    return replace(stage.inquiry, tasks=tasks, eos_token_id=(eos,))


def _stops(stage: Stage, outputs: Sequence[Sequence[int]]) -> Inquiry:
    """Stop strings that end in the middle of blocks, at a different place in each row."""
    ends = [list(ids[4 + row : 6 + row]) for row, ids in enumerate(outputs)]
    stops = [stage.tokenizer.decode(ids) for ids in ends]
    return replace(stage.inquiry, stop_strings=tuple(stop for stop in stops if stop.strip()))
