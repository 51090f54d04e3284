"""What a message looks like: numbers in, bytes out, and back.

An encoding turns each chunk of a flat vector into a whole number of bytes, independently of the
others, so a vector may be cut at chunk boundaries without changing a bit. All functions take a
leading axis of workers: P stacked workers and a single real one run the same lines. `encode`
returns a code, a few tensors with the content of the message; `pack` and `unpack` convert it to
and from bytes, for engines that really send them. The shape alone determines the size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc import text
from prlc.draws import Purpose, bits, uniforms
from prlc.encodings.bits import split_last
from prlc.errors import ConfigError

Code = tuple[Tensor, ...]
"""Some chunks of equal length, encoded; each tensor has axes (workers, chunks, ...)."""
Uniform = Callable[[], Tensor]
"""Draws numbers in [0, 1), one per element: (workers, chunks, length)."""


@dataclass(frozen=True)
class Draw:
    """The randomness of a message: a pure function of what it is for."""

    seed: int
    direction: Purpose
    workers: NDArray[np.int64]
    step: int
    block: int = 0
    first_chunk: int = 0
    """The number of the first chunk, if the values are a shard of a block."""

    def uniform(self, first: int, count: int, length: int, device: torch.device) -> Tensor:
        """Draws for `count` chunks of `length` elements, from chunk `first` on."""
        chunks = np.arange(self.first_chunk + first, self.first_chunk + first + count)
        workers = self.workers[:, None]
        bases = bits(self.seed, self.direction, workers, self.step, self.block, chunks)
        return uniforms(bases, length, device)


@dataclass(frozen=True)
class Encoding(ABC):
    """How the parameters of an update or a model travel. A frozen dataclass of settings."""

    #: Its name on the command line; a user's own needs none.
    name: ClassVar[str] = ""
    #: Whether decoding returns exactly what was encoded.
    exact: ClassVar[bool] = False

    @property
    def chunk_length(self) -> int | None:
        """How many elements are encoded together; None: the whole vector."""
        return getattr(self, "chunk", None)

    @property
    def error_feedback(self) -> float | None:
        """The share of the residual that the next message adds; None: no error feedback."""
        return None

    def __str__(self) -> str:
        return text.write(self, ",")

    # -- what an encoding defines, for chunks (workers, chunks, length) ----------------------------

    @abstractmethod
    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        """The size of one chunk."""

    @abstractmethod
    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        """Encode chunks."""

    @abstractmethod
    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        """Decode chunks into the shape and dtype of `like`."""

    @abstractmethod
    def pack_chunks(self, code: Code, length: int) -> Tensor:
        """The bytes: uint8 (workers, chunks, chunk_bytes)."""

    @abstractmethod
    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        """The inverse of `pack_chunks`."""

    def add_chunks(self, code: Code, into: Tensor, weight: float) -> None:
        """Add the decoded values, times `weight`, to `into` (workers, chunks, length)."""
        into.add_(self.decode_chunks(code, into), alpha=weight)

    def sum_chunks(self, code: Code, into: Tensor, weights: Tensor) -> None:
        """Add the decoded values of all workers, weighted, to `into` (chunks, length)."""
        like = into.expand(len(weights), *into.shape)
        into.add_((self.decode_chunks(code, like) * weights[:, None, None]).sum(0))

    # -- the same for whole vectors (workers, numel) -----------------------------------------------

    def size(self, numel: int, dtype: torch.dtype) -> int:
        """The bytes of a message with `numel` numbers of `dtype`."""
        pieces = self._pieces(numel)
        return sum(count * self.chunk_bytes(length, dtype) for _, count, length in pieces)

    def encode(self, values: Tensor, draw: Draw) -> list[Code]:
        codes = []
        for first, count, length in self._pieces(values.shape[1]):
            rows = _chunks(values, first, count, length, self.chunk_length)

            def uniform(first: int = first, count: int = count, length: int = length) -> Tensor:
                return draw.uniform(first, count, length, values.device)

            codes.append(self.encode_chunks(rows, uniform))
        return codes

    def add(self, codes: list[Code], into: Tensor, weight: float = 1.0) -> None:
        """Add the decoded values, times `weight`, to `into` (workers, numel)."""
        for code, rows in zip(codes, self._views(into), strict=True):
            self.add_chunks(code, rows, weight)

    def add_sum(self, codes: list[Code], into: Tensor, weights: Tensor) -> None:
        """Add the weighted sum over workers to `into` (numel,)."""
        for code, rows in zip(codes, self._views(into[None]), strict=True):
            self.sum_chunks(code, rows[0], weights)

    def pack(self, codes: list[Code], numel: int, out: Tensor) -> None:
        """Write the message of `numel` numbers into `out` (workers, size), uint8."""
        lengths = [length for _, _, length in self._pieces(numel)]
        pairs = zip(codes, lengths, strict=True)
        packed = [self.pack_chunks(code, length).flatten(1) for code, length in pairs]
        torch.cat(packed, dim=1, out=out)

    def unpack(self, packed: Tensor, numel: int, dtype: torch.dtype) -> list[Code]:
        codes, start = [], 0
        for _, count, length in self._pieces(numel):
            each = self.chunk_bytes(length, dtype)
            part = split_last(packed[:, start : start + count * each], each)
            codes.append(self.unpack_chunks(part, length, dtype))
            start += count * each
        return codes

    def _pieces(self, numel: int) -> Iterator[tuple[int, int, int]]:
        """Runs of chunks of equal length: the number of the first, their count, their length."""
        length = self.chunk_length or numel
        full = numel // length if numel else 0
        if full:
            yield 0, full, length
        if numel - full * length:
            yield full, 1, numel - full * length

    def _views(self, rows: Tensor) -> Iterator[Tensor]:
        for first, count, length in self._pieces(rows.shape[1]):
            yield _chunks(rows, first, count, length, self.chunk_length)


def _chunks(rows: Tensor, first: int, count: int, length: int, chunk: int | None) -> Tensor:
    start = first * (chunk or 0)
    return split_last(rows[:, start : start + count * length], length)


def check_chunk(chunk: object) -> None:
    if not (type(chunk) is int and 1 <= chunk <= 2**20):
        raise ConfigError(
            f"A chunk must be a whole number of elements from 1 to 2^20 but is {chunk!r}."
        )


@dataclass(frozen=True)
class Plain(Encoding):
    """Numbers, unchanged."""

    name: ClassVar[str] = "plain"
    exact: ClassVar[bool] = True

    def chunk_bytes(self, length: int, dtype: torch.dtype) -> int:
        return length * dtype.itemsize

    def encode_chunks(self, values: Tensor, uniform: Uniform) -> Code:
        del uniform
        return (values,)

    def decode_chunks(self, code: Code, like: Tensor) -> Tensor:
        return code[0].to(like.dtype)

    def pack_chunks(self, code: Code, length: int) -> Tensor:
        del length
        return as_bytes(code[0])

    def unpack_chunks(self, packed: Tensor, length: int, dtype: torch.dtype) -> Code:
        del length
        return (from_bytes(packed, dtype),)


def as_bytes(values: Tensor) -> Tensor:
    """Values (..., n) as bytes (..., n * itemsize)."""
    return values.contiguous().view(torch.uint8)


def from_bytes(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes (..., n * itemsize) as values (..., n)."""
    return packed.clone(memory_format=torch.contiguous_format).view(dtype)
