"""Traffic, counted in one place: where a message leaves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[np.bool_] | NDArray[np.int64]


def payload_bytes(tensors: list[Tensor]) -> int:
    """The size of a message that carries these tensors once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Traffic:
    """How often each worker pushed and pulled, and the bytes of it. The first model is free."""

    def __init__(self, num_workers: int, bytes_per_push: int, bytes_per_pull: int) -> None:
        self.bytes_per_push = bytes_per_push
        self.bytes_per_pull = bytes_per_pull
        self.pushes: NDArray[np.int64] = np.zeros(num_workers, np.int64)
        self.pulls: NDArray[np.int64] = np.zeros(num_workers, np.int64)

    def count(self, pushes: Counts, pulls: Counts) -> None:
        """Worker i sent `pushes[i]` updates and fetched the model `pulls[i]` times."""
        self.pushes += pushes
        self.pulls += pulls

    @property
    def bytes_up(self) -> int:
        """Payload from all workers to the server."""
        return int(self.pushes.sum()) * self.bytes_per_push

    @property
    def bytes_down(self) -> int:
        """Payload from the server to all workers."""
        return int(self.pulls.sum()) * self.bytes_per_pull
