"""The largest numbers of every chunk, with their positions (top-k)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings.base import Code, Encoding, Uniform, as_bytes, check_chunk, from_bytes
from prlc.encodings.bits import pack, packed_size, unpack
from prlc.encodings.quantised import check_feedback
from prlc.errors import ConfigError
from prlc.text import is_number

_WHOLE = 32  # bits of a value that is not quantised
_RANGE = 2  # bytes of each end of a chunk's range of magnitudes, as bfloat16
_WHOLE_NUMBERS = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True)
class TopK(Encoding):
    """The `share` of numbers with the largest magnitude in every chunk.

    A value takes `bits` bits: its sign, and a magnitude between the smallest and the largest that
    its chunk sends; 32: the value itself. Positions take as few bits as the chunk's length allows.
    With `ef`, the next message adds what this one left out.
    """

    share: float = 0.01
    bits: int = 4
    chunk: int = 4096
    ef: bool = True
    decay: float = 1.0

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            raise ConfigError(
                f"top-k sends a share of all numbers in (0, 1] but the share is {self.share!r}."
            )
        if self.bits not in (*range(2, 9), _WHOLE) or isinstance(self.bits, bool):
            raise ConfigError(f"top-k's values have 2 to 8 bits, or 32, but not {self.bits!r}.")
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
        positions = packed_size(k, _position_bits(length))
        if self.bits == _WHOLE:
            return positions + 4 * k
        return positions + packed_size(k, self.bits) + 2 * _RANGE

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        """Positions (workers, chunks, k), then values; or signs, steps and the ends of the range.

        A zero is never sent: its sign is 0, and its packed position repeats the one before.
        """
        del uniform
        sizes = values.abs()
        k = self.count(values.shape[-1])
        # The bits of magnitudes are in order as whole numbers too, which are compared faster.
        bits = sizes.view(_WHOLE_NUMBERS.get(sizes.dtype, sizes.dtype))
        bits, positions = torch.topk(bits, k, dim=-1)
        largest = bits.view(sizes.dtype)
        chosen = values.gather(-1, positions)
        if self.bits == _WHOLE:
            return positions, chosen.float()
        high = largest[..., :1].to(torch.bfloat16)
        low = torch.where(largest > 0, largest, largest[..., :1]).amin(-1, keepdim=True)
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
        _, signs, number, low, high = code
        low, width = low.to(dtype), high.to(dtype) - low.to(dtype)
        middle = (number.to(dtype) + 0.5) / 2 ** (self.bits - 1)
        magnitudes: Tensor = low + width * middle
        return magnitudes * signs

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        dense = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        return dense.scatter_add_(-1, code[0], self.values(code, like.dtype))

    def add_chunks(self, code: Code, into: Tensor, weight: float) -> None:
        into.scatter_add_(-1, code[0], self.values(code, into.dtype) * weight)

    def sum_chunks(self, code: Code, into: Tensor, weights: Tensor) -> None:
        count, length = into.shape
        starts = torch.arange(0, count * length, length, device=into.device)[:, None]
        weighted = self.values(code, into.dtype) * weights[:, None, None]
        into.view(-1).index_add_(0, (code[0] + starts).flatten(), weighted.flatten())

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        first = code[1]  # signs, or values: zero where a place is free
        keys, order = torch.where(first != 0, code[0], length).sort(-1)
        filled = keys < length
        last = keys.gather(-1, (filled.sum(-1, keepdim=True) - 1).clamp_(min=0))
        last = torch.where(last < length, last, 0)  # of a chunk of zeros
        positions = pack(torch.where(filled, keys, last), _position_bits(length))
        first = first.gather(-1, order)
        if self.bits == _WHOLE:
            return torch.cat([positions, as_bytes(first)], dim=-1)
        numbers = code[2].gather(-1, order).long() + 2 ** (self.bits - 1) * (first > 0)
        ends = [as_bytes(end) for end in code[3:]]
        return torch.cat([positions, pack(numbers, self.bits), *ends], dim=-1)

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del dtype
        k, width = self.count(length), _position_bits(length)
        end = packed_size(k, width)
        positions = unpack(packed[..., :end], k, width)
        free = torch.zeros_like(positions, dtype=torch.bool)
        free[..., 1:] = positions[..., 1:] == positions[..., :-1]
        if self.bits == _WHOLE:
            values = from_bytes(packed[..., end:], torch.float32)
            return positions, values.masked_fill(free, 0.0)
        middle = end + packed_size(k, self.bits)
        numbers = unpack(packed[..., end:middle], k, self.bits)
        half = 2 ** (self.bits - 1)
        low, high = from_bytes(packed[..., middle:], torch.bfloat16).chunk(2, dim=-1)
        signs = torch.where(numbers >= half, 1, -1).masked_fill(free | (high == 0), 0)
        return positions, signs.to(torch.int8), (numbers % half).to(torch.uint8), low, high


def _position_bits(length: int) -> int:
    return max(1, math.ceil(math.log2(length)))
