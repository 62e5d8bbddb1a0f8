"""Random numbers that depend on (seed, request, position) and on nothing else.

A counter-based generator: the number for a vocabulary entry is a hash of that entry under the key
of its position, so it is the same in any batch, for any K and for draft and target alike, and it
needs no state. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
MASK = (1 << 64) - 1


class Draw(IntEnum):
    """What a random number is for; numbers for different purposes are independent."""

    CHOICE = 0  # the target's own token
    ACCEPT = 1  # whether a draft is accepted (rejection sampling)
    DRAFT = 2  # a draft token that is not coupled to the target's choice


PURPOSES = len(Draw)


def stream_key(seed: int, prompt: Sequence[int], sequence: int = 0) -> int:
    """Key of one request's random numbers, 64 bits.

    The request is known by what it asks, not by where it stands: by its prompt's tokens and its
    number among the sequences returned for that prompt. So a row is the same alone and in any
    batch in any order, and rows with different prompts are independent under one seed.
    """
    digest = blake2b(digest_size=8)
    digest.update(f"{seed}/{sequence}/".encode())
    digest.update(array("q", prompt).tobytes())
    return int.from_bytes(digest.digest(), "little")


def position_key(stream: int, position: int, draw: Draw) -> int:
    """Key of the numbers drawn for one generated token, 64 bits (the splitmix64 generator).

    Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
    """
    x = (stream + (PURPOSES * position + draw + 1) * GOLDEN) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def uniform(keys: Sequence[int], device: torch.device) -> Tensor:
    """One number per key from {0, 1, ..., 2^24 - 1} / 2^24, [N] float32: never 1."""
    numbers = [(key >> 40) * 2.0**-24 for key in keys]
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def exponential(keys: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """Standard exponential numbers, [N, V] float32, for `race`.

    u in (0, 1) has 31 random bits and is finest near 0, where the winners come from: -log(1 - u)
    lies between 2e-10 and 16.6, and what that cuts off has a probability of 1e-7. All operations
    are elementwise, so a number does not depend on the shape it is computed in.
    """
    halves = [(_signed(key), _signed(key >> 32)) for key in keys]
    low, high = torch.tensor(halves, dtype=torch.int32, device=device).view(-1, 2, 1).unbind(1)
    bits = torch.arange(vocab_size, dtype=torch.int32, device=device) + low  # [N, V], wraps around
    bits = _mix_(_mix_(bits).bitwise_xor_(high)).bitwise_and_(0x7FFFFFFF)
    u = bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return u.neg_().log1p_().neg_()


def race(weights: Tensor, times: Tensor) -> Tensor:
    """Draw a token per position in proportion to its weight, [N, V] -> [N] int64.

    Token v arrives at times[v] / weights[v]; the first one wins. With exponential times this is the
    Gumbel-max trick without its logarithms: two distributions that are raced on the same times
    choose the same token with a probability of at least (1 - d) / (1 + d), d their distance.
    """
    return (weights / times).argmax(-1)


def _signed(bits: int) -> int:
    """The low 32 bits as a signed number, as an int32 tensor holds them."""
    bits &= 0xFFFFFFFF
    return bits - (1 << 32) if bits >> 31 else bits


def _mix_(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which every input bit flips half of the output bits, in place.

    The constants are Wellons' (https://github.com/skeeto/hash-prospector, public domain).
    """
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))  # >> copies the sign: mask it off
    x.mul_(_signed(0x7FEB352D))
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF))
    x.mul_(_signed(0x846CA68B))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
