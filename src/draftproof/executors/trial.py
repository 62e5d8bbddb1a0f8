"""One comparison of a model's own `generate` with an executor, module by module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftproof.executors.differing import Difference, Rounding, first_difference
from draftproof.executors.memory import free_bytes
from draftproof.executors.walks import BEFORE, Walk, memory_walks, our_outputs, start_walks
from draftproof.hf import BoundModel
from draftproof.hf.depth import decoder_layers, few_layers
from draftproof.hf.judge import Memory, evaluating, own_outputs
from draftproof.hf.listening import LOGITS, Listener, Place
from draftproof.hf.upcast import HALVES, in_float32

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
LOUD = 8  # the first tokens that leave a window weigh as much as all the others


@contextlib.contextmanager
def _all_layers() -> Iterator[list[Any]]:
    """As `few_layers`, but none is skipped."""
    yield []


@dataclass(slots=True)
class Trial:
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
    def of(cls, bound: BoundModel, judge: Any) -> Iterator[Trial]:
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
        if self.affordable(length):
            where = self.differs(start_walks(vocab, most, length), length)
        if where is not None:
            return where
        return self.differs(memory_walks(vocab, length, self._memory(length - BEFORE)), length)

    def affordable(self, length: int) -> bool:
        """Whether two rows of this length can be read, twice, while the user waits."""
        layers = decoder_layers(self.bound.model) or [self.bound.model]
        ran = [layer for layer, runs in zip(layers, self.running, strict=False) if runs]
        weights = sum(int(p.numel()) for layer in ran for p in layer.parameters())
        return length <= LONGEST and 2.0 * weights * 4 * length <= AFFORDABLE

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
                tensor = torch.randn(
                    1, layer.kv_heads, count, dim, generator=generator, dtype=torch.float32
                )
                pair.append(tensor)
            pair[1][:, :, :LOUD] *= count**0.5
            made = pair[0].to(layer.device, layer.dtype), pair[1].to(layer.device, layer.dtype)
            memory.append(made if runs else None)
        return memory
