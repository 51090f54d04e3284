"""A model in transit: its travelling tensors as flat vectors, cut into the servers' shards.

If all parts are plain, there is one vector per dtype of the model (most have one). Otherwise all
numbers are in one vector of at least float32 (`FlatModel`), and shards are cut at chunk boundaries
of every block: a shard is a piece of each block's parameters, then a piece of each block's buffers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prlc.engines.flat import FlatModel
from prlc.engines.job import travelling
from prlc.methods import Method, Scheduled

Vector = list[Tensor]
"""A few flat tensors that together are a model, an update, or a part of one."""


@dataclass(frozen=True)
class Piece:
    """The part of a block in a shard."""

    parameters: slice
    """In the whole vector."""
    buffers: slice
    start: int
    """Where its parameters begin within the block: a multiple of all chunk lengths."""

    @property
    def numel(self) -> int:
        return int(self.parameters.stop - self.parameters.start)


class Packing:
    """The place of each tensor in a model's flat vectors, and where shards are cut."""

    def __init__(
        self,
        model: nn.Module,
        num_shards: int = 1,
        device: torch.device | None = None,
        method: Method | None = None,
    ) -> None:
        """`device` holds the vectors: the CPU for gloo, a GPU for NCCL."""
        tensors = travelling(model)
        self._device, self.num_shards = device, num_shards
        self._shapes = [tensor.shape for tensor in tensors]
        self.own_dtypes = [tensor.dtype for tensor in tensors]
        self.flat: FlatModel | None = None
        self.pieces: list[list[Piece]] = []
        if method is not None and not method.trivial:
            self.flat = FlatModel(model, method.blocks if isinstance(method, Scheduled) else 1)
            self._dtypes, self._groups = [self.flat.dtype], [list(range(len(tensors)))]
            self.pieces = [self._cut(self.flat, method, shard) for shard in range(num_shards)]
        else:
            self._dtypes = list(dict.fromkeys(self.own_dtypes))
            self._groups = [
                [i for i, own in enumerate(self.own_dtypes) if own == dtype]
                for dtype in self._dtypes
            ]
        self._sizes = [sum(tensors[i].numel() for i in group) for group in self._groups]
        # Parameters come before buffers, so in every flat vector they come first.
        num_parameters = len(list(model.parameters()))
        self.num_parameters = [
            sum(tensors[i].numel() for i in group if i < num_parameters) for group in self._groups
        ]

    def _cut(self, flat: FlatModel, method: Method, shard: int) -> list[Piece]:
        unit = math.lcm(*(encoding.chunk_length or 1 for encoding in method.encodings))
        pieces = []
        for block in flat.blocks:
            units = -(-block.numel // unit)
            first, last = (
                min(block.numel, unit * (units * number // self.num_shards))
                for number in (shard, shard + 1)
            )
            start, n = block.buffers.start, block.num_buffers
            b0, b1 = (start + n * number // self.num_shards for number in (shard, shard + 1))
            start = block.parameters.start
            pieces.append(Piece(slice(start + first, start + last), slice(b0, b1), first))
        return pieces

    def zeros(self, shard: int | None = None) -> Vector:
        """A vector of zeros for a shard, or for the whole model."""
        kinds = zip(self._sizes, self._dtypes, strict=True)
        whole = [torch.zeros(size, dtype=dtype, device=self._device) for size, dtype in kinds]
        if shard is None:
            return whole
        return [torch.zeros_like(part) for part in self.shard(whole, shard)]

    def shard(self, vector: Vector, shard: int) -> Vector:
        """A shard of a whole vector, as views."""
        if self.flat is not None:
            pieces, whole = self.pieces[shard], vector[0]
            return [whole[p.parameters] for p in pieces] + [whole[p.buffers] for p in pieces]
        bounds = self._bounds(shard)
        return [flat[start:end] for flat, (start, end) in zip(vector, bounds, strict=True)]

    def parameters(self, shard: int) -> list[int]:
        """How many elements of each tensor in a shard are parameters; buffers follow."""
        if self.flat is not None:
            pieces = self.pieces[shard]
            return [piece.numel for piece in pieces] + [0] * len(pieces)
        counts = zip(self._bounds(shard), self.num_parameters, strict=True)
        return [max(0, min(end, n) - start) for (start, end), n in counts]

    def tensors(self, vector: Vector) -> list[Tensor]:
        """The model's tensors as views of a whole vector."""
        found: dict[int, Tensor] = {}
        for flat, group in zip(vector, self._groups, strict=True):
            sizes = [self._shapes[i].numel() for i in group]
            for i, part in zip(group, torch.split(flat, sizes), strict=True):
                found[i] = part.view(self._shapes[i])
        return [found[i] for i in range(len(self._shapes))]

    def pack(self, tensors: Sequence[Tensor], vector: Vector) -> None:
        """Copy tensors into a whole vector."""
        for into, tensor in zip(self.tensors(vector), tensors, strict=True):
            into.copy_(tensor)

    def unpack(self, vector: Vector, tensors: Sequence[Tensor]) -> None:
        """Copy a whole vector into tensors."""
        for tensor, value in zip(tensors, self.tensors(vector), strict=True):
            tensor.copy_(value)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors have the agreed shapes and types."""
        kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]
        return kinds == list(zip(self._shapes, self.own_dtypes, strict=True))

    def describe(self) -> str:
        """What must be the same on all ranks."""
        counts = {
            dtype: sum(
                shape.numel()
                for shape, own in zip(self._shapes, self.own_dtypes, strict=True)
                if own == dtype
            )
            for dtype in dict.fromkeys(self.own_dtypes)
        }
        numbers = ", ".join(
            f"{n:,} numbers of {str(dtype).removeprefix('torch.')}" for dtype, n in counts.items()
        )
        shapes = zlib.crc32(repr([tuple(shape) for shape in self._shapes]).encode())
        return f"{len(self._shapes)} tensors with {numbers} (checksum of the shapes {shapes:08x})"

    def _bounds(self, shard: int) -> list[tuple[int, int]]:
        s, S = shard, self.num_shards
        return [(size * s // S, size * (s + 1) // S) for size in self._sizes]


def is_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every number is finite.

    A sum is cheaper than testing each number, and any that is not finite spoils it. Only when the
    sum is spoilt, or overflows, is each number tested.
    """
    return all(bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all()) for tensor in tensors)


def distance_sq(a: Vector, b: Vector) -> float:
    """The squared distance between two vectors, in double precision."""
    return sum(float((x - y).double().square().sum()) for x, y in zip(a, b, strict=True))
