"""A few bits per number, rounded at random without bias (QSGD, TernGrad).

With a chunk's scale s and L levels, x becomes s * sign(x) * l / L, where l is |x| L / s rounded up
or down at random such that the expectation is x (Alistarh et al. 2017, eq. 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings.base import Code, Encoding, Uniform, as_bytes, check_chunk, from_bytes
from prlc.encodings.bits import pack, packed_size, split_last, unpack
from prlc.errors import ConfigError
from prlc.text import is_number

NORMS = ("max", "l2")
_SCALE = 4  # bytes
_DIGITS = 5  # to the base 3, in a byte


@dataclass(frozen=True)
class Int8(Encoding):
    """127 levels and a sign. `norm`: a chunk's scale is its largest magnitude, or its l2 norm."""

    norm: str = "max"
    chunk: int = 4096
    ef: bool = False
    decay: float = 1.0

    name: ClassVar[str] = "int8"
    width: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_chunk(self.chunk)
        check_feedback(self.ef, self.decay)
        if self.norm not in NORMS:
            raise ConfigError(f"The norm of {self.name} must be max or l2 but is {self.norm!r}.")

    @property
    def error_feedback(self) -> float | None:
        return self.decay if self.ef else None

    @property
    def levels(self) -> int:
        return int(2 ** (self.width - 1) - 1)

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        del dtype
        return _SCALE + packed_size(length, self.width)

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        """Levels (workers, chunks, length) as int8, and scales (workers, chunks, 1)."""
        sizes = values.abs()
        if self.norm == "max":
            scale = sizes.amax(-1, keepdim=True).float()
        else:
            scale = torch.linalg.vector_norm(sizes, dim=-1, keepdim=True).float()
        per_level = torch.where(scale > 0, self.levels / scale, 0.0).to(values.dtype)
        sizes = sizes.mul_(per_level).add_(uniform()).clamp_(max=self.levels)
        return sizes.copysign_(values).to(torch.int8), scale  # which drops what is behind the point

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        levels, scale = code
        return levels.to(like.dtype).mul_((scale / self.levels).to(like.dtype))

    def sum_chunks(self, code: Code, into: Tensor, weights: Tensor) -> None:
        levels, scale = code
        factors = (scale / self.levels).to(into.dtype) * weights[:, None, None]
        rows = levels.to(into.dtype).transpose(0, 1)  # a product (1, workers) x (workers, length)
        into[:, None].baddbmm_(factors.permute(1, 2, 0), rows)

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        del length
        levels, scale = code
        numbers = levels.to(torch.int16) + self.levels
        return torch.cat([as_bytes(scale), pack(numbers, self.width)], dim=-1)

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del dtype
        numbers = unpack(packed[..., _SCALE:], length, self.width)
        return (numbers - self.levels).to(torch.int8), from_bytes(
            packed[..., :_SCALE], torch.float32
        )


@dataclass(frozen=True)
class Int4(Int8):
    """7 levels and a sign."""

    name: ClassVar[str] = "int4"
    width: ClassVar[int] = 4


@dataclass(frozen=True)
class Int2(Int8):
    """Up, down or nothing."""

    name: ClassVar[str] = "int2"
    width: ClassVar[int] = 2


@dataclass(frozen=True)
class Ternary(Int2):
    """Up, down or nothing, after outliers are clipped (TernGrad, Wen et al. 2017).

    `clip`: in standard deviations of the chunk; 0: no clipping. Each worker has its own scale: the
    largest over all workers would cost a round of messages.
    """

    clip: float = 2.5

    name: ClassVar[str] = "ternary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.clip) and 0 <= self.clip < math.inf):
            raise ConfigError(
                f"TernGrad's clip must be a number of standard deviations, 0 or more, but is "
                f"{self.clip!r}."
            )

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        if self.clip and values.shape[-1] > 1:
            centred = values - values.mean(-1, keepdim=True)  # torch's own std is slow
            length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
            limit = length.mul_(self.clip / math.sqrt(values.shape[-1] - 1))
            values = torch.clamp(values, -limit, limit)
        return super().encode_chunks(values, uniform)


@dataclass(frozen=True)
class Signs(Encoding):
    """The sign of each number, 0 included, times the mean magnitude of its chunk; not at random.

    Five of them fit into a byte, as digits to the base 3.
    """

    chunk: int = 4096
    ef: bool = False
    decay: float = 1.0

    name: ClassVar[str] = "signs"

    def __post_init__(self) -> None:
        check_chunk(self.chunk)
        check_feedback(self.ef, self.decay)

    @property
    def error_feedback(self) -> float | None:
        return self.decay if self.ef else None

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        del dtype
        return _SCALE + -(-length // _DIGITS)

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        del uniform
        return values.sign().to(torch.int8), values.abs().mean(-1, keepdim=True).float()

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        signs, scale = code
        return signs.to(like.dtype) * scale.to(like.dtype)

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        signs, scale = code
        digits = torch.nn.functional.pad(signs + 1, (0, -length % _DIGITS))
        packed = split_last(digits, _DIGITS).to(torch.int16) @ _powers(digits)
        return torch.cat([as_bytes(scale), packed.to(torch.uint8)], dim=-1)

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del dtype
        digits = packed[..., _SCALE:, None].to(torch.int16) // _powers(packed) % 3
        signs = digits.flatten(-2)[..., :length] - 1
        return signs.to(torch.int8), from_bytes(packed[..., :_SCALE], torch.float32)


def _powers(like: Tensor) -> Tensor:
    return torch.tensor([3**k for k in range(_DIGITS)], dtype=torch.int16, device=like.device)


def check_feedback(ef: object, decay: object) -> None:
    """Refuse invalid settings of error feedback."""
    if not isinstance(ef, bool):
        raise ConfigError(f"Error feedback `ef` must be yes or no but is {ef!r}.")
    if not (is_number(decay) and 0 < decay <= 1):
        raise ConfigError(f"The decay of error feedback must lie in (0, 1] but is {decay!r}.")
    if decay != 1 and not ef:
        raise ConfigError("Without error feedback nothing decays: add ef=yes, or leave out decay.")
