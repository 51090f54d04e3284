"""The models of all workers as stacked tensors.

Each tensor of the model becomes one matrix with a row per worker. A row holds the elements in the
memory order in which autograd hands out the gradient of that tensor (a product may well return it
transposed), so that adding gradients to models reads and writes straight through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The shape of a tensor and the memory order of its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of_row(cls, stacked: Tensor) -> Layout:
        """The layout of one row of a stacked tensor, if it is dense; otherwise row-major."""
        row = stacked[0]
        order = sorted(range(row.ndim), key=lambda d: (row.stride(d), row.shape[d]))
        dense = 1
        for dimension in order:
            if row.shape[dimension] > 1 and row.stride(dimension) != dense:
                return cls.plain(row)
            dense *= row.shape[dimension]
        return cls(tuple(row.shape), tuple(row.stride()))

    @classmethod
    def plain(cls, tensor: Tensor) -> Layout:
        """The usual order: row-major."""
        return cls(tuple(tensor.shape), tuple(torch.empty(tensor.shape, device="meta").stride()))

    @cached_property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    def view(self, rows: Tensor) -> Tensor:
        """The rows (n, numel) as tensors (n, *shape), sharing memory."""
        return rows.as_strided((len(rows), *self.shape), (rows.stride(0), *self.strides))

    def rows(self, stacked: Tensor) -> Tensor:
        """The tensors (n, *shape) as rows (n, numel); no copy if the order matches."""
        strides = (self.numel, *self.strides)
        if stacked.stride() != strides:
            ordered = stacked.new_empty(len(stacked), self.numel)
            self.view(ordered).copy_(stacked)
            return ordered
        return stacked.as_strided((len(stacked), self.numel), (self.numel, 1))


def stack(tensor: Tensor, count: int, layout: Layout) -> Tensor:
    """`count` equal rows of one tensor."""
    rows = tensor.new_empty(count, layout.numel)
    layout.view(rows).copy_(tensor.detach().expand(count, *layout.shape))
    return rows


def squared_norms(rows: Sequence[Tensor]) -> Tensor:
    """For each row, the squared length over all tensors, in double precision."""
    parts = [torch.linalg.vector_norm(r, dim=1).double().square() for r in rows]
    return torch.stack(parts).sum(0)
