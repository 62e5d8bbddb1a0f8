"""The rows of a proof, and in which forwards an executor reads them.

row 0   p p p p p|p p p p p p|n n x x|n          p prompt, n new token, x wrong draft
row 1   p p p p p p p|n x x|n|n                  | ends what one forward reads
row 2                |p p p p|n|n n x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof.executors.rows import RowsExecutor
from draftproof.hf import BoundModel
from draftproof.hf.judge import Memory, Passage
from draftproof.hf.listening import LOGITS, Heard, Listener, Place
from draftproof.types import RaggedTokens

PROMPTS = (11, 7, 4)
NEW = 3  # tokens fed one by one behind a prompt
WRONG = 2  # drafts at most that are taken back
SCORED = NEW + WRONG  # the last tokens of what a row feeds, whose logits are wanted
LEAST = 5  # positions that the shortest rows take, wrong drafts included
BEFORE = 3  # tokens before a length that is crossed from memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """A passage, and what an executor feeds of it in each of its forwards.

    steps: (tokens of the passage, wrong drafts behind them); no tokens: the row sits this one out
    """

    passage: Passage
    steps: list[tuple[int, int]]


def start_walks(vocab_size: int, most: int | None, across: int | None = None) -> list[Walk]:
    """Three rows from their beginning; one prompt goes beyond `across`, a second row later.

    most: positions that the model has
    """
    prompts = PROMPTS if across is None else (across + NEW, max(1, across - 2), PROMPTS[2])
    limit = None if most is None else most - LEAST + 1
    lengths = [length if limit is None else min(length, limit) for length in prompts]
    half = max(1, lengths[0] // 2)
    steps = [
        [(half, 0), (lengths[0] - half, 0), (2, 2), (1, 0)],
        [(lengths[1], 0), (1, 2), (1, 0), (1, 0)],
        [(0, 0), (lengths[2], 0), (1, 0), (2, 1)],
    ]
    ids = random_ids(vocab_size, [length + NEW for length in lengths])
    return [
        Walk(passage=Passage(tokens=tokens, prompt=length), steps=walk)
        for tokens, length, walk in zip(ids, lengths, steps, strict=True)
    ]


def short_walks(vocab_size: int, length: int) -> list[Walk]:
    """Two rows shorter than a length, whose prompts have more tokens in one forward."""
    prompt = length - NEW - 1
    return [
        Walk(
            passage=Passage(tokens=tokens, prompt=prompt),
            steps=[(prompt, 0), (1, 1), (1, 0), (1, 0)],
        )
        for tokens in random_ids(vocab_size, [prompt + NEW] * 2)
    ]


def memory_walks(vocab_size: int, length: int, memory: Memory) -> list[Walk]:
    """A row that crosses a length while decoding, from a filled cache, beside a short one.

    memory: keys and values of the `length - BEFORE` tokens before
    """
    total, first = length + BEFORE, length - BEFORE
    long, short = random_ids(vocab_size, [total, PROMPTS[1] + NEW])
    passage = Passage(tokens=long, prompt=first + 1, cached=first, memory=memory)
    return [
        Walk(passage=passage, steps=[(1, 0), (1, 2), (3, 0), (1, 1)]),
        Walk(
            passage=Passage(tokens=short, prompt=PROMPTS[1]),
            steps=[(PROMPTS[1], 0), (1, 1), (1, 0), (1, 0)],
        ),
    ]


def random_ids(vocab_size: int, lengths: Sequence[int]) -> list[list[int]]:
    """The same ids every time."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def our_outputs(bound: BoundModel, listener: Listener, walks: Sequence[Walk]) -> Heard:
    """What every module puts out when an executor reads the passages of the walks together."""
    longest = max(len(walk.passage.tokens) for walk in walks) + WRONG
    reader = _Reader(RowsExecutor(model=bound, rows=len(walks), capacity=longest), walks)
    with listener.listening(reader.places) as heard:
        for step in range(max(len(walk.steps) for walk in walks)):
            reader.read(step, heard)
    return heard


@dataclass(slots=True)
class _Reader:
    """Feeds walks to an executor.

    fed: the tokens of the forward that runs
    """

    executor: RowsExecutor
    walks: Sequence[Walk]
    fed: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        cache = self.executor.cache
        for row, walk in enumerate(self.walks):
            cached = walk.passage.cached
            for index, pair in enumerate(walk.passage.memory):
                if pair is not None:
                    cache.keys[index][row, :, :cached] = pair[0][0]
                    cache.values[index][row, :, :cached] = pair[1][0]
            self.executor.lengths[row] = cached

    def places(self, count: int) -> list[Place | None]:
        """What the `count` tokens of a forward are, fillers at the end included."""
        return [*self.fed, *[None] * (count - len(self.fed))]

    def read(self, step: int, heard: Heard) -> None:
        """One step of every walk; wrong drafts are taken back."""
        active = [
            (r, w) for r, w in enumerate(self.walks) if step < len(w.steps) and any(w.steps[step])
        ]
        rows = [row for row, _ in active]
        starts = [self.executor.lengths[row] for row in rows]
        pieces = [
            self._ids(walk, start, *walk.steps[step])
            for (_, walk), start in zip(active, starts, strict=True)
        ]
        counts = [len(piece) for piece in pieces]
        keep = [min(count, SCORED) for count in counts]
        spans = list(zip(rows, starts, counts, keep, strict=True))
        self.fed = [(row, start + n) for row, start, count, _ in spans for n in range(count)]
        scored = [(r, start + n) for r, start, count, k in spans for n in range(count - k, count)]
        ids = torch.tensor([i for piece in pieces for i in piece], device=self.executor.device)
        logits = self.executor.forward(
            RaggedTokens(ids=ids, rows=rows, starts=starts, counts=counts, keep=keep)
        )
        heard.add(LOGITS, scored, logits)
        for (row, walk), start in zip(active, starts, strict=True):
            self.executor.truncate(row, start + walk.steps[step][0])

    def _ids(self, walk: Walk, start: int, right: int, wrong: int) -> list[int]:
        """Tokens of the passage, and drafts behind them that are none of it."""
        tokens = walk.passage.tokens
        known = tokens[start : start + right]
        following = [*tokens[start + right : start + right + wrong], *[0] * wrong][:wrong]
        return known + [(token + 1) % self.executor.vocab_size for token in following]
