"""Rounded to the nearest point of a grid (LAQ, Sun et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings.base import Code, Encoding, Uniform, as_bytes, check_chunk, from_bytes
from prlc.encodings.bits import pack, packed_size, unpack
from prlc.encodings.quantised import check_feedback
from prlc.errors import ConfigError

_RADIUS = 4  # bytes
_HALF = 0.5 + 2.0**-30  # so that a zero with rounding errors becomes the same point everywhere


@dataclass(frozen=True)
class Grid(Encoding):
    """2^bits points, evenly from -R to R, the chunk's largest magnitude; no chance is involved.

    Zero lies halfway between two points and becomes the upper one, as in the paper (eq. 5 and 6),
    whose only chunk is the whole vector.
    """

    bits: int = 8
    chunk: int = 4096
    ef: bool = False
    decay: float = 1.0

    name: ClassVar[str] = "grid"

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= 8:
            raise ConfigError(
                f"A grid's numbers have 1 to 8 bits but not {self.bits!r}: take one of these, or "
                "up=plain for all of them."
            )
        check_chunk(self.chunk)
        check_feedback(self.ef, self.decay)

    @property
    def error_feedback(self) -> float | None:
        return self.decay if self.ef else None

    @property
    def last(self) -> int:
        """The number of the uppermost point."""
        return int(2**self.bits - 1)

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        del dtype
        return _RADIUS + packed_size(length, self.bits)

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        """Points (workers, chunks, length) as uint8, and radii (workers, chunks, 1)."""
        del uniform
        radius = values.abs().amax(-1, keepdim=True).float()
        own = radius.to(values.dtype)
        places = torch.where(own > 0, values / own, 0.0).add_(1.0)  # in [0, 2]
        points = places.mul_(self.last / 2).add_(_HALF).floor_().clamp_(0, self.last)
        return points.to(torch.uint8), radius

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        points, radius = code
        return points.to(like.dtype).mul_(2 / self.last).sub_(1.0).mul_(radius.to(like.dtype))

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        del length
        points, radius = code
        return torch.cat([as_bytes(radius), pack(points, self.bits)], dim=-1)

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del dtype
        points = unpack(packed[..., _RADIUS:], length, self.bits)
        return points.to(torch.uint8), from_bytes(packed[..., :_RADIUS], torch.float32)
