"""A model on the wire: its travelling tensors as one flat vector per kind of number.

Few large messages instead of many small ones, and a vector is easily cut into the shards that
several owners keep. Nearly every model has one kind of number, so a `Vector` has one element.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prlc.engines.base import travelling

Vector = list[Tensor]


class Packing:
    """Where each tensor of a model lies in its flat vectors, and where these are cut."""

    def __init__(
        self, model: nn.Module, num_shards: int = 1, device: torch.device | None = None
    ) -> None:
        """`device` is where vectors live: the CPU for gloo, a GPU for NCCL."""
        tensors = travelling(model)
        self._device = device
        self._shapes = [tensor.shape for tensor in tensors]
        self._dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        self._members = [
            [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            for dtype in self._dtypes
        ]
        self._sizes = [sum(tensors[i].numel() for i in group) for group in self._members]
        # Parameters come before buffers, so in every flat vector they come first.
        num_parameters = len(list(model.parameters()))
        self.num_parameters = [
            sum(tensors[i].numel() for i in group if i < num_parameters) for group in self._members
        ]
        self._num_shards = num_shards

    def zeros(self, shard: int | None = None) -> Vector:
        """A vector of zeros: of a shard, or of the whole model."""
        sizes = self._sizes
        if shard is not None:
            sizes = [end - start for start, end in self._bounds(shard)]
        kinds = zip(sizes, self._dtypes, strict=True)
        return [torch.zeros(size, dtype=dtype, device=self._device) for size, dtype in kinds]

    def shard(self, vector: Vector, shard: int) -> Vector:
        """The part of a whole vector that a shard is, as views."""
        bounds = self._bounds(shard)
        return [flat[start:end] for flat, (start, end) in zip(vector, bounds, strict=True)]

    def parameters(self, shard: int) -> list[int]:
        """How many elements of each vector of a shard are parameters; the others are buffers."""
        counts = zip(self._bounds(shard), self.num_parameters, strict=True)
        return [max(0, min(end, n) - start) for (start, end), n in counts]

    def tensors(self, vector: Vector) -> list[Tensor]:
        """The model's tensors as views of a whole vector."""
        found: dict[int, Tensor] = {}
        for flat, group in zip(vector, self._members, strict=True):
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
        """Whether the tensors have the shapes that were agreed on."""
        return [tensor.shape for tensor in tensors] == self._shapes

    def describe(self) -> str:
        """What must be the same on all ranks."""
        numbers = ", ".join(
            f"{n:,} numbers of {str(t).removeprefix('torch.')}"
            for n, t in zip(self._sizes, self._dtypes, strict=True)
        )
        shapes = zlib.crc32(repr([tuple(shape) for shape in self._shapes]).encode())
        return f"{len(self._shapes)} tensors with {numbers} (checksum of the shapes {shapes:08x})"

    def _bounds(self, shard: int) -> list[tuple[int, int]]:
        s, S = shard, self._num_shards
        return [(size * s // S, size * (s + 1) // S) for size in self._sizes]


def is_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every number is. A sum is cheaper than a look at each, and spoilt by any that is not;
    only if it is spoilt, or too large, each is looked at."""
    return all(bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all()) for tensor in tensors)


def distance_sq(a: Vector, b: Vector) -> float:
    """The squared distance of two vectors, in double precision."""
    return sum(float((x - y).double().square().sum()) for x, y in zip(a, b, strict=True))
