"""The largest numbers of every chunk, with their positions (top-k)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from prlc.encodings.base import Code, Encoding, Uniform, as_bytes, check_chunk, from_bytes
from prlc.encodings.bits import (
    ascending_size,
    pack,
    pack_ascending,
    packed_size,
    unpack,
    unpack_ascending,
)
from prlc.encodings.quantised import check_feedback
from prlc.errors import ConfigError
from prlc.text import is_number

_WHOLE = 32  # bits of a value that is not quantised
_RANGE = 2  # bytes of each end of a chunk's range of magnitudes, as bfloat16; a mean takes both


@dataclass(frozen=True)
class TopK(Encoding):
    """The `share` of numbers with the largest magnitude in every chunk.

    A value takes `bits` bits: its sign, and a magnitude between the smallest and the largest that
    its chunk sends; 1: the sign, of the mean magnitude (sparse ternary); 32: the value itself.
    Positions take hardly more bits than they must. With `ef`, the next message adds what
    this one left out. With `transform`, the numbers are those of the chunk's cosine transform.
    """

    share: float = 0.01
    bits: int = 4
    chunk: int = 4096
    ef: bool = True
    decay: float = 1.0
    transform: bool = False

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            raise ConfigError(
                f"top-k sends a share of all numbers in (0, 1] but the share is {self.share!r}."
            )
        if self.bits not in (*range(1, 9), _WHOLE) or isinstance(self.bits, bool):
            raise ConfigError(f"top-k's values have 1 to 8 bits, or 32, but not {self.bits!r}.")
        if not isinstance(self.transform, bool):
            raise ConfigError(f"top-k's transform must be yes or no but is {self.transform!r}.")
        check_chunk(self.chunk)
        check_feedback(self.ef, self.decay)

    @property
    def error_feedback(self) -> float | None:
        return self.decay if self.ef else None

    def count(self, length: int) -> int:
        """How many numbers a chunk of this length sends."""
        return max(1, min(length, round(self.share * length)))

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        del dtype
        k = self.count(length)
        positions = ascending_size(k, length)
        if self.bits == _WHOLE:
            return positions + 4 * k
        return positions + packed_size(k, self.bits) + 2 * _RANGE

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        """Positions (workers, chunks, k), then values; or signs, steps and the ends of the range.

        A zero is never sent: its sign is 0, and its packed position repeats the one before.
        """
        del uniform
        if self.transform:
            # Rounded, so that what is sent does not hang on how many rows are transformed at once.
            values = cosine(values).float().to(values.dtype)
        k = self.count(values.shape[-1])
        positions = _largest(_ranks(values.abs(), roughly=self.bits == 1), k)
        chosen = values.gather(-1, positions)
        if self.bits == _WHOLE:
            return positions, chosen.float()
        largest = chosen.abs()
        if self.bits == 1:
            sent = (largest > 0).sum(-1, keepdim=True).clamp_(min=1)
            mean = (largest.sum(-1, keepdim=True) / sent).float()
            return positions, chosen.sign().to(torch.int8), mean
        top = largest.amax(-1, keepdim=True)
        low = torch.where(largest > 0, largest, top).amin(-1, keepdim=True)
        high = top.to(torch.bfloat16)
        low = torch.minimum(low.to(torch.bfloat16), high)
        steps = 2 ** (self.bits - 1)
        width = (high.to(values.dtype) - low.to(values.dtype)).clamp_(min=0)
        per_step = torch.where(width > 0, steps / width, 0.0)
        number = ((largest - low.to(values.dtype)) * per_step).floor_().clamp_(0, steps - 1)
        return positions, chosen.sign().to(torch.int8), number.to(torch.uint8), low, high

    def values(self, code: Code, dtype: torch.dtype) -> Tensor:
        """The numbers that are sent, (workers, chunks, k)."""
        if self.bits == _WHOLE:
            return code[1].to(dtype)
        if self.bits == 1:
            return code[2].to(dtype) * code[1]
        _, signs, number, low, high = code
        low, width = low.to(dtype), high.to(dtype) - low.to(dtype)
        middle = (number.to(dtype) + 0.5) / 2 ** (self.bits - 1)
        magnitudes: Tensor = low + width * middle
        return magnitudes * signs

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        dense = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        dense.scatter_add_(-1, code[0], self.values(code, like.dtype))
        return inverse_cosine(dense) if self.transform else dense

    def add_chunks(self, code: Code, into: Tensor, weight: float) -> None:
        if self.transform:
            return super().add_chunks(code, into, weight)
        into.scatter_add_(-1, code[0], self.values(code, into.dtype) * weight)
        return None

    def sum_chunks(self, code: Code, into: Tensor, weights: Tensor) -> None:
        count, length = into.shape
        starts = torch.arange(0, count * length, length, device=into.device)[:, None]
        weighted = self.values(code, into.dtype) * weights[:, None, None]
        total = torch.zeros_like(into) if self.transform else into
        total.view(-1).index_add_(0, (code[0] + starts).flatten(), weighted.flatten())
        if self.transform:
            into.add_(inverse_cosine(total))

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        first = code[1]  # signs, or values: zero where a place is free
        keys, order = torch.where(first != 0, code[0], length).sort(-1)
        filled = keys < length
        last = keys.gather(-1, (filled.sum(-1, keepdim=True) - 1).clamp_(min=0))
        last = torch.where(last < length, last, 0)  # of a chunk of zeros
        positions = pack_ascending(torch.where(filled, keys, last), length)
        first = first.gather(-1, order)
        if self.bits == _WHOLE:
            return torch.cat([positions, as_bytes(first)], dim=-1)
        if self.bits == 1:
            return torch.cat([positions, pack(first > 0, 1), as_bytes(code[2])], dim=-1)
        numbers = code[2].gather(-1, order).long() + 2 ** (self.bits - 1) * (first > 0)
        ends = [as_bytes(end) for end in code[3:]]
        return torch.cat([positions, pack(numbers, self.bits), *ends], dim=-1)

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del dtype
        k = self.count(length)
        end = ascending_size(k, length)
        positions = unpack_ascending(packed[..., :end], k, length)
        free = torch.zeros_like(positions, dtype=torch.bool)
        free[..., 1:] = positions[..., 1:] == positions[..., :-1]
        if self.bits == _WHOLE:
            values = from_bytes(packed[..., end:], torch.float32)
            return positions, values.masked_fill(free, 0.0)
        middle = end + packed_size(k, self.bits)
        numbers = unpack(packed[..., end:middle], k, self.bits)
        half = 2 ** (self.bits - 1)
        if self.bits == 1:
            mean = from_bytes(packed[..., middle:], torch.float32)
            signs = torch.where(numbers > 0, 1, -1).masked_fill(free | (mean == 0), 0)
            return positions, signs.to(torch.int8), mean
        low, high = from_bytes(packed[..., middle:], torch.bfloat16).chunk(2, dim=-1)
        signs = torch.where(numbers >= half, 1, -1).masked_fill(free | (high == 0), 0)
        return positions, signs.to(torch.int8), (numbers % half).to(torch.uint8), low, high


def _ranks(sizes: Tensor, *, roughly: bool) -> Tensor:
    """Magnitudes as whole numbers, no two of a row alike: of equal ones the earlier is larger.

    The bits of a float are in order as a whole number, too. Roughly, they are those of a bfloat16:
    means of ternary messages are full of numbers that are equal but for rounding, and which of them
    are sent must not depend on the order of summation.
    """
    length = sizes.shape[-1]
    bits = (
        sizes.to(torch.bfloat16).view(torch.int16) if roughly else sizes.float().view(torch.int32)
    )
    whole = torch.int32 if roughly and length <= 2**16 else torch.int64
    later = torch.arange(length - 1, -1, -1, dtype=whole, device=sizes.device)
    return bits.to(whole).mul_(length).add_(later)


def _largest(ranks: Tensor, k: int) -> Tensor:
    """The positions of the k largest ranks in each row (..., length), ascending."""
    if ranks.device.type != "cpu":
        return torch.topk(ranks, k, dim=-1).indices.sort(dim=-1).values
    # NumPy partitions with vector instructions: a quarter of the time of torch.topk.
    length = ranks.shape[-1]
    rows = ranks.flatten(0, -2).numpy()
    least = np.partition(rows, length - k, axis=-1)[:, length - k]
    places = np.flatnonzero(rows >= least[:, None]) % length
    return torch.from_numpy(places).view(*ranks.shape[:-1], k)


def cosine(values: Tensor) -> Tensor:
    """The orthonormal cosine transform (DCT-II) along the last axis, by way of a Fourier transform.

    The even elements, then the odd ones backwards, have a Fourier transform whose k-th element,
    turned by k/(4n) of a circle, has the real part sum_j x_j cos(pi k (2j + 1) / (2n)) (Makhoul
    1980).
    """
    n = values.shape[-1]
    order = torch.cat([values[..., ::2], values[..., 1::2].flip(-1)], dim=-1)
    turned: Tensor = torch.fft.fft(order, dim=-1) * _turns(n, values)
    return turned.real * _scales(n, values)


def inverse_cosine(values: Tensor) -> Tensor:
    """The inverse of `cosine`, which is its transpose."""
    n = values.shape[-1]
    scaled = values / _scales(n, values)
    mirrored = torch.cat([torch.zeros_like(scaled[..., :1]), scaled[..., 1:].flip(-1)], dim=-1)
    order = torch.fft.ifft(torch.complex(scaled, -mirrored) * _turns(n, values).conj(), dim=-1).real
    found = torch.empty_like(values)
    found[..., ::2] = order[..., : (n + 1) // 2]
    found[..., 1::2] = order[..., (n + 1) // 2 :].flip(-1)
    return found


def _turns(n: int, like: Tensor) -> Tensor:
    angles = torch.arange(n, dtype=like.dtype, device=like.device) * (-math.pi / (2 * n))
    return torch.polar(torch.ones_like(angles), angles)


def _scales(n: int, like: Tensor) -> Tensor:
    scales = torch.full((n,), math.sqrt(2 / n), dtype=like.dtype, device=like.device)
    scales[0] = math.sqrt(1 / n)
    return scales
