"""Shorter floating-point numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings.base import Code, Encoding, Uniform, as_bytes, from_bytes


@dataclass(frozen=True)
class Float32(Encoding):
    """Rounded to 32 bits; lossless for a model in float32."""

    name: ClassVar[str] = "float32"
    kind: ClassVar[torch.dtype] = torch.float32

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        del dtype
        return length * self.kind.itemsize

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        del uniform
        limit = torch.finfo(self.kind).max
        return (values.clamp(-limit, limit).to(self.kind),)

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        return code[0].to(like.dtype)

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        del length
        return as_bytes(code[0])

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del length, dtype
        return (from_bytes(packed, self.kind),)


@dataclass(frozen=True)
class BFloat16(Float32):
    """The upper half of a float32: its range, with three digits."""

    name: ClassVar[str] = "bfloat16"
    kind: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True)
class Float16(Float32):
    """Half precision: more digits than bfloat16, clamped to its smaller range."""

    name: ClassVar[str] = "float16"
    kind: ClassVar[torch.dtype] = torch.float16
