"""Random numbers as pure functions of (seed, purpose, indices).

Who pulls, which samples form a batch and how long a step takes must not depend on the order in
which an engine asks. So there is no stream: a draw is a hash (the SplitMix64 finaliser) of (seed,
purpose, indices), vectorised over NumPy arrays of indices. Every engine makes the same draws, a
resumed run repeats them, and server and workers agree on them without a message. NumPy's own
counter-based generators cannot do this: they give one stream per object.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["Purpose", "bits", "lognormal", "torch_seed", "uniform", "uniforms"]

_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a draw is for; draws for different purposes are independent."""

    PULL = 1
    SHUFFLE = 2
    PARTITION = 3
    COMPUTE = 4
    STRAGGLER = 5
    MODEL = 6
    EVALUATION = 7
    SAMPLE = 8
    ENCODE_UP = 9
    ENCODE_DOWN = 10
    ALWAYS_PUSHES = 11


def _finalise(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(seed: int, purpose: Purpose, *indices: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each element of the broadcast `indices` (non-negative integers)."""
    start = (seed + _GOLDEN * int(purpose)) % 2**64
    z = _finalise(np.asarray([start], np.uint64))
    with np.errstate(over="ignore"):
        for index in indices:
            z = _finalise((z ^ np.asarray(index).astype(np.uint64)) + np.uint64(_GOLDEN))
    return z.reshape(np.broadcast_shapes(*(np.shape(index) for index in indices)))


def uniform(seed: int, purpose: Purpose, *indices: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each element of the broadcast `indices`."""
    draws = bits(seed, purpose, *indices) >> np.uint64(11)
    return draws.astype(np.float64) * 2.0**-53


def lognormal(
    seed: int, purpose: Purpose, *indices: ArrayLike, spread: float
) -> NDArray[np.float64]:
    """Positive numbers with mean 1 and standard deviation `spread` (Box-Muller, then exp)."""
    first = 1.0 - uniform(seed, purpose, *indices, 0)
    second = uniform(seed, purpose, *indices, 1)
    normal = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    variance = np.log1p(spread**2)
    return np.asarray(np.exp(np.sqrt(variance) * normal - variance / 2.0))


def torch_seed(seed: int, purpose: Purpose, *indices: int) -> int:
    """A seed for torch's generator, for draws that torch makes (initial weights, dropout)."""
    return int(bits(seed, purpose, *indices)) >> 1


def uniforms(bases: NDArray[np.uint64], count: int, device: torch.device) -> Tensor:
    """`count` numbers in [0, 1) for each of `bases` (as from `bits`): shape (*bases.shape, count).

    Position i gets a * h_i + b modulo 2^32, where a and b are the halves of its base and h_i is a
    hash of i (multiply-shift, Dietzfelbinger 1996). Numbers of one base are independent in pairs,
    which is all that the variance of a sum asks for; those of different bases are independent. In
    torch, some thirty times as fast as `uniform`, and the same on every device.
    """
    halves = bases[..., None].astype("<u8", copy=False).view("<i4")
    b, a = torch.from_numpy(halves.astype(np.int32)).to(device).chunk(2, dim=-1)
    z = (_hashed_positions(count, device) * a).add_(b).bitwise_right_shift_(8)
    return z.to(torch.float32).mul_(2.0**-24).add_(0.5)


@lru_cache(maxsize=16)
def _hashed_positions(count: int, device: torch.device) -> Tensor:
    """32 random bits for each of 0, ..., count - 1."""
    hashed = _finalise(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return torch.from_numpy(hashed.astype(np.uint32).view(np.int32)).to(device)
