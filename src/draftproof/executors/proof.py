"""Whether a model's own forward and this package's agree, in the steps that decoding takes.

A list of supported models cannot know every model: a mask, a scale or a position may be the
model's own business. So the model's own `generate` reads a few rows one at a time, an executor
reads the same rows together, and every module's output is compared for every token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from draftproof.errors import UnsupportedModelError
from draftproof.executors.differing import Difference, Rounding, first_difference
from draftproof.executors.memory import free_bytes
from draftproof.executors.walks import (
    BEFORE,
    LEAST,
    PROMPTS,
    Walk,
    memory_walks,
    our_outputs,
    start_walks,
)
from draftproof.hf import BoundModel
from draftproof.hf.depth import decoder_layers, few_layers
from draftproof.hf.identity import fingerprint, identity, settings_of_length
from draftproof.hf.judge import Memory, evaluating, own_outputs
from draftproof.hf.listening import LOGITS, Listener, Place
from draftproof.hf.upcast import HALVES, in_float32
from draftproof.numerics.store import keep_json, key_of, recall_json

# Sums in another order gave errors of at most 4e-6 in float32 and 0.03 in bfloat16 in forty
# architectures with sharp attention. A mask, scale or position that differs gives 0.005 to 1, which
# bfloat16 may hide: so weights of 16 bits are judged in float32 where the model runs in it.
# Elsewhere a router may choose another expert: a tenth of the tokens may be off, or a single one.
ROUNDING = {
    torch.float64: Rounding(tolerance=1e-8),
    torch.float32: Rounding(tolerance=1e-4),
    torch.float16: Rounding(tolerance=0.02, flips=0.1),
    torch.bfloat16: Rounding(tolerance=0.08, flips=0.1),
}
# Attention in single operations rounds its scores to 16 bits before the softmax: a score of 50 is
# then off by 0.1, its weight by a tenth. The model's own masks are judged under our kernel then.
EAGER = 0.4
SMALL = 20_000_000  # weights up to which every layer runs, and not two of each kind
AFFORDABLE = 2e10  # operations to cross a length in a prompt: about a second on a slow core
LONGEST = 2000  # tokens of such a prompt at most: attention is not in the above
MEMORY = 1 << 29  # bytes of keys and values that are made up to cross a length when binding
LOUD = 8  # the first tokens that leave a window weigh as much as all the others


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the comparison found.

    tokens:  how many were compared
    differs: the first module that differs; None: rows are right
    crossed: lengths across which rows are right as well
    wrong:   lengths beyond which rows are wrong, and the first module that differs there
    """

    tokens: int = 0
    differs: str | None = None
    crossed: tuple[int, ...] = ()
    wrong: dict[int, str] = field(default_factory=dict)

    @property
    def limit(self) -> int | None:
        """Tokens that a row may have; None: as many as the model has positions."""
        return min(self.wrong, default=None)

    def describe(self) -> str:
        """One line for reports."""
        lengths = f", across lengths {', '.join(map(str, self.crossed))}" if self.crossed else ""
        limit = "" if self.limit is None else f"; wrong beyond {self.limit} tokens, refused there"
        return f"equal to its own generate on {self.tokens} tokens{lengths}{limit}"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Proof:
        wrong = {int(length): where for length, where in data["wrong"].items()}
        return cls(**data | {"crossed": tuple(data["crossed"]), "wrong": wrong})


@dataclass(slots=True)
class Proven:
    """A model that was compared, to go on where the proof ended.

    judge: the model as it was given, which may wrap the one that is bound
    """

    bound: BoundModel
    judge: Any
    proof: Proof
    key: str

    def require_length(self, length: int) -> None:
        """Rows may get this long: lengths on the way that were not crossed before are crossed.

        Raises UnsupportedModelError where rows are wrong beyond a shorter length.
        """
        left = [n for n in _lengths(self.bound) if n < length and not self._known(n)]
        if left:
            with _Trial.of(self.bound, self.judge) as trial:
                self.proof = _cross(trial, self.proof, left)
            keep_json(self.key, asdict(self.proof))
        limit = self.proof.limit
        if limit is not None and length > limit:
            where = self.proof.wrong[limit]
            raise UnsupportedModelError(
                f"{_refusal(self.bound, where)}. That is so for rows of more than {limit} tokens, "
                f"and {length} are asked for: choose shorter prompts or fewer max_new_tokens, or "
                f"end rows there with max_model_len={limit}"
            )

    def _known(self, length: int) -> bool:
        return length in self.proof.crossed or length in self.proof.wrong


def prove(
    bound: BoundModel, judge: Any = None, *, weights: str | None = None, fresh: bool = False
) -> Proven:
    """Compare a model with its own `generate`, or recall from disk that it was done.

    judge:   the model as it was given, where that wraps the one that is bound
    weights: their fingerprint, taken before packing dropped some of them
    fresh:   compare again even so

    To be called again when weights have changed: a bias that was zero makes no difference.
    Raises UnsupportedModelError, naming the first module that differs.
    """
    judge = bound.model if judge is None else judge
    weights = fingerprint(bound.model) if weights is None else weights
    key = key_of(identity(bound.model, judge, weights))
    found = None if fresh else _recall(key)
    if found is None:
        found = _compare(bound, judge)
        keep_json(key, asdict(found))
    if found.differs is not None:
        raise UnsupportedModelError(_refusal(bound, found.differs))
    return Proven(bound, judge, found, key)


@contextlib.contextmanager
def _all_layers() -> Iterator[list[Any]]:
    """As `few_layers`, but none is skipped."""
    yield []


def _recall(key: str) -> Proof | None:
    try:
        data = recall_json(key)
        return None if data is None else Proof.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # a damaged file


def _refusal(bound: BoundModel, where: str) -> str:
    return (
        f"{type(bound.model).__name__}: its own generate and rows in a batch come to different "
        f"results, first in {where}: what happens there depends on more than a token's position "
        "and the tokens before it (a mask, a scale, positions or a state of the model's own)"
    )


def _compare(bound: BoundModel, judge: Any) -> Proof:
    if bound.max_positions is not None and bound.max_positions < LEAST:
        return Proof()
    walks = start_walks(bound.vocab_size, bound.max_positions)
    proof = Proof(tokens=sum(len(walk.passage.tokens) for walk in walks))
    with _Trial.of(bound, judge) as trial:
        differs = trial.differs(walks)
        if differs is not None:
            return replace(proof, differs=differs)
        return _cross(trial, proof, [n for n in _lengths(bound) if trial.memory_bytes(n) < MEMORY])


def _lengths(bound: BoundModel) -> list[int]:
    """Lengths that the first rows do not cross and at which the model may change."""
    most = bound.max_positions
    found = settings_of_length(bound.config)
    return [n for n in found if n > PROMPTS[0] and (most is None or n + BEFORE < most)]


def _cross(trial: _Trial, proof: Proof, lengths: Sequence[int]) -> Proof:
    """The proof, with what happens across these lengths."""
    for length in lengths:
        where = trial.crossing(length)
        if where is None:
            proof = replace(proof, crossed=tuple(sorted({*proof.crossed, length})))
        else:
            proof = replace(proof, wrong={**proof.wrong, length: where})
    return proof


@dataclass(slots=True)
class _Trial:
    """A model of which all layers run, or a few, and what compares it.

    running: whether a layer runs, by index
    """

    bound: BoundModel
    judge: Any
    skipped: list[Any]
    running: list[bool]
    listener: Listener

    @classmethod
    @contextlib.contextmanager
    def of(cls, bound: BoundModel, judge: Any) -> Iterator[_Trial]:
        model = bound.model
        small = sum(p.numel() for p in model.parameters()) <= SMALL
        with evaluating(model), _all_layers() if small else few_layers(model) as skipped:
            idle = {id(module) for module in skipped}
            running = [id(layer) not in idle for layer in decoder_layers(model)]
            running = running or [True] * len(bound.layers)
            yield cls(bound, judge, skipped, running, Listener(model, skipped))

    def differs(self, walks: Sequence[Walk], across: int | None = None) -> str | None:
        """The first module that differs, described; None: none does.

        across: a length; the tokens before and behind it are judged apart
        """
        if self.bound.dtype in HALVES and self._fits_in_float32():
            # quantised layers and some kernels know their own type only
            with contextlib.suppress(Exception), in_float32(self.bound, self.skipped):
                return self._differs(walks, across)
        return self._differs(walks, across)

    def _fits_in_float32(self) -> bool:
        idle = {id(p) for layer in self.skipped for p in layer.parameters()}
        parameters = self.bound.model.parameters()
        need = 4 * sum(p.numel() for p in parameters if p.dtype in HALVES and id(p) not in idle)
        free = free_bytes(self.bound.device)
        return free is None or need < free // 2

    def _differs(self, walks: Sequence[Walk], across: int | None) -> str | None:
        ours = our_outputs(self.bound, self.listener, walks)
        passages = [walk.passage for walk in walks]

        def kind(place: Place) -> tuple[bool, bool]:
            row, position = place
            return position >= passages[row].prompt, across is not None and position >= across

        for our_kernel, rounding in self._judgements():
            run = own_outputs(
                self.bound, self.judge, self.listener, passages, our_kernel=our_kernel
            )
            found = first_difference(run, ours, self._judged(), rounding, kind)
            if found is not None:
                return self._describe(found)
        return None

    def _judgements(self) -> Iterator[tuple[bool, Rounding]]:
        """Under which attention kernel the model's own forward runs, and how it is judged."""
        rounding = ROUNDING[self.bound.dtype]
        eager = self.bound.config._attn_implementation == "eager"
        if eager and rounding.flips is not None:
            yield True, rounding
            rounding = replace(rounding, tolerance=EAGER)
        yield False, rounding

    def _judged(self) -> set[str]:
        """The layers and their attention modules, and the logits."""
        layers = {id(layer) for layer in decoder_layers(self.bound.model)}
        attention = ((n, m) for n, m in self.listener.modules if "draftproof" in vars(m))
        names = {n for n, m in self.listener.modules if id(m) in layers}
        return names | {n for n, _ in attention} | {LOGITS[0]}

    def _describe(self, found: Difference) -> str:
        name, (row, position) = found.call[0], found.place
        kind = ""
        if found.call != LOGITS:
            kind = f" ({type(self.bound.model.get_submodule(name)).__name__})"
        return f"{name}{kind}, by {found.error:.1%} at position {position} of row {row}"

    def crossing(self, length: int) -> str | None:
        """What differs when rows cross a length, in a prompt where affordable, and decoding."""
        vocab, most = self.bound.vocab_size, self.bound.max_positions
        where = None
        if length <= LONGEST and self._operations(4 * length) <= AFFORDABLE:
            where = self.differs(start_walks(vocab, most, length), length)
        if where is not None:
            return where
        return self.differs(memory_walks(vocab, length, self._memory(length - BEFORE)), length)

    def _operations(self, tokens: int) -> float:
        layers = decoder_layers(self.bound.model) or [self.bound.model]
        ran = [layer for layer, runs in zip(layers, self.running, strict=False) if runs]
        weights = sum(int(p.numel()) for layer in ran for p in layer.parameters())
        return 2.0 * tokens * weights

    def memory_bytes(self, length: int) -> int:
        """Keys and values that a row of this length has in the layers that run."""
        layers = zip(self.bound.layers, self.running, strict=False)  # the last may share
        return length * sum(layer.bytes_per_token for layer, runs in layers if runs)

    def _memory(self, count: int) -> Memory:
        """Keys and values of `count` tokens for the layers that run, drawn at random."""
        memory: Memory = []
        for index, (layer, runs) in enumerate(zip(self.bound.layers, self.running, strict=False)):
            generator = torch.Generator().manual_seed(index)
            pair = []
            for dim in (layer.key_dim, layer.value_dim):
                tensor = torch.randn(1, layer.kv_heads, count, dim, generator=generator)
                pair.append(tensor)
            pair[1][:, :, :LOUD] *= count**0.5
            made = pair[0].to(layer.device, layer.dtype), pair[1].to(layer.device, layer.dtype)
            memory.append(made if runs else None)
        return memory
