"""Train the embedded demo pair: a deep narrow target and a shallow draft that imitates it.

The text is the documentation inside the running interpreter's standard library, so the weights
may be shipped. Three stages share the time budget:

1. *Trunk*: a model of `DRAFT_LAYERS` layers learns the whole corpus. Small models learn fast.
2. *Target*: the trunk is grown to `TARGET_LAYERS` layers and trained on, on plain prose only. The
   new layers start as the identity: growing changes no logit, so no progress is lost.
3. *Draft*: the trunk is distilled from the finished target, half on prose and half on the target's
   own greedy continuations.

    python scripts/train_demo_pair.py --minutes 34 --output src/draftproof/models
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import json
import random
import re
import shutil
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerBase as HfTokenizer

VOCAB, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 3072, 128, 384, 4, 2
TARGET_LAYERS, DRAFT_LAYERS, MAX_LENGTH = 12, 2, 2048
EOS, PAD = "<|endoftext|>", "<|pad|>"
EOS_ID, PAD_ID = 0, 1
TOKENS_PER_STEP = 1024
LENGTHS = (256, 256, 512, 256, 256, 256, 512, 1024)  # one block per step, cut to rows this long
SHARES = {"trunk": 0.44, "target": 0.32, "draft": 0.24}  # of the time, in order
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "encodings", "turtledemo", "site-packages"}
SKIPPED |= {"pydoc_data", "ensurepip", "__pycache__"}
MODULE_LIMIT, SOURCE_LIMIT = 2_000, 30_000  # characters
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}A: {{ m['content'] }}{{ eos_token }}"
    "{% else %}Q: {{ m['content'] }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
HELD_OUT_PROMPTS = (
    "The",
    "Return a list of",
    "This module provides support for reading and writing",
    "When an exception is raised, the interpreter looks for",
    "A class that represents a connection to a remote server. The connection is opened when",
    "Objects are created by calling their class. The arguments of the call are passed to the "
    "method that initialises the new instance, and the result of the call is",
)


# --- corpus ---------------------------------------------------------------------------------------


def reflow(text: str) -> str:
    """Join the hard-wrapped lines of each prose paragraph; drop doctests and grammar rules."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(_join(p) for p in paragraphs if ">>>" not in p and "::=" not in p).strip()


def _join(paragraph: str) -> str:
    lines = paragraph.split("\n")
    one_indent = len({len(line) - len(line.lstrip()) for line in lines}) == 1
    wrapped = all(len(line) > 40 for line in lines[:-1])
    return " ".join(line.strip() for line in lines) if one_indent and wrapped else paragraph


def is_prose(text: str) -> bool:
    """Whether `text` is mostly words, and enough of them to learn from."""
    return len(text) >= 60 and words_share(text) > 0.8 and text.count(" ") >= 8


def words_share(text: str) -> float:
    """How much of `text` is letters, spaces and simple punctuation, in [0, 1]."""
    return sum(c.isalpha() or c in " ,." for c in text) / max(1, len(text))


def stdlib_sources() -> Iterator[str]:
    """Source text of the standard library's modules, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not SKIPPED.intersection(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """`(name, docstring)` of everything documented in `source`; the module itself has no name."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
            yield getattr(node, "name", ""), reflow(doc)


def module_documents(source: str) -> Iterator[str]:
    """Prose docstrings of one module; every fourth short one is asked for as a question."""
    used = 0
    for index, (name, doc) in enumerate(docstrings(source)):
        if is_prose(doc) and used < MODULE_LIMIT:
            used += len(doc)
            asked = name and index % 4 == 0 and len(doc) < 1200
            yield f"Q: What does {name} do?\nA: {doc}" if asked else doc


def source_documents(sources: list[str]) -> Iterator[str]:
    """A little code: small modules without their comments, up to `SOURCE_LIMIT` characters."""
    used = 0
    for source in sources:
        code = re.sub(r"^\s*#.*\n", "", source, flags=re.M).strip()
        if 500 < len(code) < 4000 and used < SOURCE_LIMIT:
            used += len(code)
            yield code


def gather_documents() -> list[str]:
    """Language reference topics, docstrings, and a little code, without duplicates."""
    from pydoc_data.topics import topics

    sources = list(stdlib_sources())
    reference = [reflow(text) for text in topics.values()]
    prose = [doc for source in sources for doc in module_documents(source)]
    return list(dict.fromkeys([*reference, *prose, *source_documents(sources)]))


def plain(document: str) -> str:
    """The document without its headings, code, tables and indentation."""
    paragraphs = document.split("\n\n")
    kept = [p for p in paragraphs if words_share(p) > 0.88 and len(p) > 40 and "==" not in p]
    return "\n\n".join(textwrap.dedent(p) for p in kept)


def train_tokenizer(documents: list[str], folder: Path) -> HfTokenizer:
    """Byte-level BPE, written to `folder` in the plain form that old and new loaders read."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_LENGTH}
    settings |= {"bos_token": EOS, "eos_token": EOS, "pad_token": PAD}
    settings |= {"chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", settings)
    return AutoTokenizer.from_pretrained(folder)


def write_json(path: Path, settings: dict[str, object]) -> None:
    """Write `settings` readably, in a fixed order."""
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def blocks(encoded: list[list[int]], rng: random.Random) -> Iterator[Tensor]:
    """Endless `[TOKENS_PER_STEP]` blocks: documents and their end tokens, reshuffled each epoch."""
    while True:
        order = rng.sample(encoded, len(encoded))
        stream = torch.tensor([token for ids in order for token in (*ids, EOS_ID)])
        yield from stream[rng.randrange(TOKENS_PER_STEP) :].split(TOKENS_PER_STEP)[:-1]


def batches(encoded: list[list[int]], seed: int) -> Iterator[Tensor]:
    """The blocks as batches `[B, T]` whose row lengths go round `LENGTHS`."""
    for step, block in enumerate(blocks(encoded, random.Random(seed))):
        yield block.view(-1, LENGTHS[step % len(LENGTHS)])


# --- models ---------------------------------------------------------------------------------------


def config(layers: int) -> LlamaConfig:
    """A Llama of this depth; everything else is the same for target and draft."""
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.04,
        bos_token_id=EOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )


def grow(trunk: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """`trunk` with new layers before its last one that add zero, so its logits stay the same."""
    grown = LlamaForCausalLM(config(layers))
    grown.model.embed_tokens.load_state_dict(trunk.model.embed_tokens.state_dict())
    grown.model.norm.load_state_dict(trunk.model.norm.state_dict())
    *first, last = trunk.model.layers
    for index, layer in enumerate(grown.model.layers):
        if index < len(first) or index == layers - 1:
            layer.load_state_dict((first[index] if index < len(first) else last).state_dict())
        else:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return grown


def save(model: LlamaForCausalLM, folder: Path, tokenizer_folder: Path) -> None:
    """Write a bfloat16 copy and the tokenizer's files, with both spellings of moved settings."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"torch_dtype": "bfloat16", "rope_theta": 10000.0}
    write_json(folder / "config.json", settings)
    special = {"bos_token_id": EOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    write_json(folder / "generation_config.json", special)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if folder != tokenizer_folder:
            shutil.copy(tokenizer_folder / name, folder / name)


def load(folder: Path) -> LlamaForCausalLM:
    """The saved model, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stretch of training: how long, how fast, and where in the schedule it starts and ends."""

    name: str
    seconds: float
    peak: float
    final: float = 0.02  # last learning rate, as a fraction of `peak`
    warmup: float = 0.03  # fraction of the stage

    def rate(self, progress: float) -> float:
        """Learning rate at `progress` in [0, 1]: linear warm-up, then a cosine down to `final`."""
        if progress < self.warmup:
            return self.peak * (progress / self.warmup)
        angle = torch.tensor(torch.pi * (progress - self.warmup) / (1 - self.warmup))
        return self.peak * (self.final + (1 - self.final) * 0.5 * (1 + float(angle.cos())))


def optimiser(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW that decays matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def fit(
    model: LlamaForCausalLM, losses: Iterator[Tensor], stage: Stage, checkpoint: Callable[[], None]
) -> None:
    """Minimise the endless `losses` for the stage's time, with a checkpoint every 4 minutes."""
    adam, start, mean, saved = optimiser(model), time.monotonic(), 0.0, 0
    for step, loss in enumerate(losses):
        spent = time.monotonic() - start
        if spent >= stage.seconds:
            break
        for group in adam.param_groups:
            group["lr"] = stage.rate(spent / stage.seconds)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        mean = loss.item() if step == 0 else 0.98 * mean + 0.02 * loss.item()
        if step % 100 == 0:
            print(f"{stage.name} {spent:5.0f} s  step {step:5d}  loss {mean:.3f}", flush=True)
        if spent // 240 > saved:
            saved = spent // 240
            checkpoint()
    checkpoint()


def corpus_losses(model: LlamaForCausalLM, data: Iterator[Tensor]) -> Iterator[Tensor]:
    """Next-token cross-entropy of each batch."""
    for ids in data:  # [B, T]
        logits = model(input_ids=ids, use_cache=False).logits  # [B, T, V]
        yield F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def greedy_texts(target: LlamaForCausalLM, data: Iterator[Tensor], seconds: float) -> list[Tensor]:
    """Rows `[T]`: corpus fragments of varied length, each continued by the target greedily."""
    texts: list[Tensor] = []
    start, rng = time.monotonic(), random.Random(2)
    while time.monotonic() - start < seconds or not texts:
        fragments = torch.cat([next(data).flatten().view(32, -1) for _ in range(3)])  # [96, 32]
        prompts = fragments[:, : rng.choice((4, 8, 16, 32))]
        texts += target.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_length=160,
            pad_token_id=PAD_ID,
        ).unbind()
    return texts


def with_greedy(data: Iterator[Tensor], texts: list[Tensor], seed: int) -> Iterator[Tensor]:
    """Alternate corpus batches with batches `[4, T]` of the target's own texts, padded."""
    rng = random.Random(seed)
    for ids in data:
        yield ids
        rows = rng.sample(texts, 4)
        yield torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)


def distillation_losses(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, data: Iterator[Tensor]
) -> Iterator[Tensor]:
    """KL(target || draft) of each batch, plus cross-entropy to the target's greedy choice."""
    for ids in data:  # [B, T]
        keep = ids != PAD_ID
        with torch.no_grad():
            teacher = target(input_ids=ids, use_cache=False).logits[keep]  # [N, V]
        student = draft(input_ids=ids, use_cache=False).logits[keep]  # [N, V]
        divergence = F.kl_div(
            student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        yield 0.5 * divergence + 0.5 * F.cross_entropy(student, teacher.argmax(-1))


# --- measuring ------------------------------------------------------------------------------------


@torch.no_grad()
def acceptance(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, prompt: Tensor, *, k: int, new_tokens: int
) -> tuple[int, int]:
    """`(accepted, drafted)` of greedy speculation on one prompt `[1, T]`, without any cache."""
    ids, accepted, drafted = prompt, 0, 0
    while (
        ids.shape[1] < prompt.shape[1] + new_tokens and (ids[:, prompt.shape[1] :] != EOS_ID).all()
    ):
        proposed = ids
        for _ in range(k):
            choice = draft(input_ids=proposed, use_cache=False).logits[:, -1:].argmax(-1)
            proposed = torch.cat([proposed, choice], dim=1)
        logits = target(input_ids=proposed, use_cache=False).logits
        verified = logits[:, ids.shape[1] - 1 :].argmax(-1)  # [1, K+1]
        agrees = (verified[:, :k] == proposed[:, ids.shape[1] :]).long()
        n = int(agrees.cumprod(1).sum())
        ids = torch.cat([ids, verified[:, : n + 1]], dim=1)
        accepted, drafted = accepted + n, drafted + k
    return accepted, drafted


def report(folder: Path, prompts: tuple[str, ...], *, k: int = 4, new_tokens: int = 64) -> float:
    """Print acceptance and the target's continuation for each prompt; return the total rate."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "demo_target")
    target, draft = load(folder / "demo_target"), load(folder / "demo_draft")
    counts = []
    for text in prompts:
        prompt = tokenizer(text, return_tensors="pt").input_ids
        counts.append(acceptance(target, draft, prompt, k=k, new_tokens=new_tokens))
        out = target.generate(prompt, do_sample=False, max_new_tokens=new_tokens)
        print(f"{counts[-1][0]:3d}/{counts[-1][1]:3d}  {tokenizer.decode(out[0])!r}")
    rate = sum(a for a, _ in counts) / sum(d for _, d in counts)
    print(f"acceptance at K = {k}: {rate:.3f}", flush=True)
    return rate


# --- the whole recipe -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The corpus, where the two models go, and the time and seed of each stage."""

    documents: list[str]
    target_at: Path
    draft_at: Path
    seconds: float
    seed: int

    def data(self, stage: str) -> Iterator[Tensor]:
        """The stage's batches: everything for the trunk, plain prose for the other stages."""
        texts = self.documents
        if stage != "trunk":
            texts = [text for text in map(plain, texts) if is_prose(text)]
        encoded = AutoTokenizer.from_pretrained(self.target_at)(texts).input_ids
        characters, tokens = sum(map(len, texts)), sum(map(len, encoded))
        print(f"{stage}: {len(texts)} documents, {characters} characters, {tokens} tokens")
        return batches(encoded, self.seed + list(SHARES).index(stage))

    def train_trunk(self) -> None:
        """Stage 1; each checkpoint is a first draft and, grown, a first target."""
        train_tokenizer(self.documents, self.target_at)
        trunk = LlamaForCausalLM(config(DRAFT_LAYERS))

        def checkpoint() -> None:
            save(trunk, self.draft_at, self.target_at)
            save(grow(trunk, TARGET_LAYERS), self.target_at, self.target_at)

        stage = Stage(name="trunk", seconds=SHARES["trunk"] * self.seconds, peak=4e-3, final=0.25)
        fit(trunk, corpus_losses(trunk, self.data("trunk")), stage, checkpoint)

    def train_target(self) -> None:
        """Stage 2, from the target that the trunk was grown to."""
        target = load(self.target_at)
        stage = Stage(name="target", seconds=SHARES["target"] * self.seconds, peak=2e-3)
        losses = corpus_losses(target, self.data("target"))
        fit(target, losses, stage, lambda: save(target, self.target_at, self.target_at))

    def train_draft(self) -> None:
        """Stage 3, from the trunk, which the target has left behind."""
        target, draft, data = load(self.target_at), load(self.draft_at), self.data("draft")
        seconds = SHARES["draft"] * self.seconds
        texts = greedy_texts(target, data, 0.25 * seconds)
        print(f"draft: {len(texts)} greedy continuations", flush=True)
        losses = distillation_losses(draft, target, with_greedy(data, texts, self.seed))
        stage = Stage(name="draft", seconds=0.75 * seconds, peak=2e-3)
        fit(draft, losses, stage, lambda: save(draft, self.draft_at, self.target_at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=34.0, help="training time, all stages")
    parser.add_argument("--output", type=Path, required=True, help="parent of the two folders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", choices=SHARES, default="trunk", help="resume at this stage")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(2)
    recipe = Recipe(
        documents=gather_documents(),
        target_at=arguments.output / "demo_target",
        draft_at=arguments.output / "demo_draft",
        seconds=60 * arguments.minutes,
        seed=arguments.seed,
    )
    stages = list(SHARES)
    for stage in stages[stages.index(arguments.start) :]:
        getattr(recipe, f"train_{stage}")()
    report(arguments.output, HELD_OUT_PROMPTS)


if __name__ == "__main__":
    main()
