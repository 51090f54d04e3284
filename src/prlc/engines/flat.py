"""A model as one flat vector, cut into blocks: the form that parts work on.

Parameters come first, row-major in module order; then floating-point buffers. A block is a run of
whole tensors with the buffers of their modules, and a model of its own to all parts. Numbers are
at least float32, whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from prlc.errors import ConfigError


@dataclass(frozen=True)
class Block:
    """The place of a block: its parameters, and its buffers, which follow all parameters."""

    parameters: slice
    buffers: slice

    @property
    def numel(self) -> int:
        return int(self.parameters.stop - self.parameters.start)

    @property
    def num_buffers(self) -> int:
        return int(self.buffers.stop - self.buffers.start)


class FlatModel:
    """The place of each travelling tensor of a model in its flat vector."""

    def __init__(self, model: nn.Module, blocks: int = 1) -> None:
        parameters = list(model.parameters())
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        self.shapes = [tensor.shape for tensor in (*parameters, *buffers)]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.num_tensors = len(parameters)
        self.num_parameters = sum(self.sizes[: self.num_tensors])
        self.numel = sum(self.sizes)
        self.dtype = torch.float32
        for tensor in (*parameters, *buffers):
            self.dtype = torch.promote_types(self.dtype, tensor.dtype)
        self.blocks = self._cut(model, blocks)

    @cached_property
    def starts(self) -> list[int]:
        return [0, *np.cumsum(self.sizes).tolist()]

    def views(self, rows: Tensor) -> list[Tensor]:
        """Rows (n, numel) as the tensors (n, *shape) of n models, sharing their memory."""
        parts = zip(self.starts, self.sizes, self.shapes, strict=False)
        return [rows[:, start : start + n].view(len(rows), *shape) for start, n, shape in parts]

    def pack(self, tensors: Sequence[Tensor], row: Tensor) -> None:
        """Copy a model's travelling tensors into a row (numel,)."""
        for into, tensor in zip(self.views(row[None]), tensors, strict=True):
            into[0].copy_(tensor)

    def unpack(self, row: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy a row (numel,) into a model's travelling tensors."""
        for tensor, value in zip(tensors, self.views(row[None]), strict=True):
            tensor.copy_(value[0])

    def tensors_of(self, block: Block) -> range:
        """The parameter tensors of a block."""
        first, last = (
            self.starts.index(end) for end in (block.parameters.start, block.parameters.stop)
        )
        return range(first, last)

    def _cut(self, model: nn.Module, count: int) -> list[Block]:
        """`count` runs of whole tensors of nearly equal size, with the buffers of their modules."""
        if count > self.num_tensors:
            raise ConfigError(
                f"The model has {self.num_tensors} tensors of parameters, so it cannot be cut into "
                f"{count} blocks: take at most {self.num_tensors}."
            )
        ends, total = self.starts[1 : self.num_tensors + 1], self.num_parameters
        cuts = [0]  # in tensors
        for block in range(1, count):
            best = min(
                range(cuts[-1] + 1, self.num_tensors - (count - block) + 1),
                key=lambda k: abs(ends[k - 1] - total * block / count),
            )
            cuts.append(best)
        cuts.append(self.num_tensors)
        block_of = np.repeat(np.arange(count), np.diff(cuts))
        owners = _buffer_owners(model)
        sizes = [0] * count
        for owner, size in zip(owners, self.sizes[self.num_tensors :], strict=True):
            sizes[int(block_of[owner])] += size
        blocks, start = [], self.num_parameters
        for block in range(count):
            first, last = self.starts[cuts[block]], self.starts[cuts[block + 1]]
            blocks.append(Block(slice(first, last), slice(start, start + sizes[block])))
            start += sizes[block]
        return blocks


def _buffer_owners(model: nn.Module) -> list[int]:
    """For each floating-point buffer, the parameter tensor in whose block it travels."""
    owners: list[int] = []
    seen: set[int] = set()
    tensors = 0
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                tensors += 1
        for buffer in module.buffers(recurse=False):
            if buffer.is_floating_point() and id(buffer) not in seen:
                seen.add(id(buffer))
                owners.append(max(0, tensors - 1))
    return owners
