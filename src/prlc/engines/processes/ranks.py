"""A worker of several ranks: the first of them, its leader, talks to the other workers.

Inside the worker the script averages gradients at every backward pass (DistributedDataParallel), so
all its ranks take the same step. What the team then makes of the leader's model, the others copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from prlc.engines.processes.cluster import Layout
from prlc.engines.processes.wire import all_gather, broadcast
from prlc.engines.processes.worker import A_DAY


class Ranks:
    """The ranks of this process's worker."""

    def __init__(self, layout: Layout, rank: int) -> None:
        """All ranks of all workers must do this together."""
        self.members = layout.ranks_of(layout.worker_of(rank))
        self.place = self.members.index(rank)
        limit = timedelta(seconds=A_DAY)  # who hangs is noticed by its signs of life
        for worker in range(len(layout.workers)):
            ranks = layout.ranks_of(worker)
            group = dist.new_group(ranks, timeout=limit)
            control = dist.new_group(ranks, timeout=limit, backend="gloo")
            if rank in ranks:
                self.group, self._control = group, control  # the script's, and prlc's own

    @property
    def leads(self) -> bool:
        return self.place == 0

    def tell(self, content: Any) -> Any:
        """The leader's content, on every rank of the worker."""
        return broadcast(content, self.members[0], self._control)

    def tell_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors, in place, with the leader's."""
        for tensor in tensors:
            dist.broadcast(tensor.detach(), self.members[0], self.group)

    def gather(self, content: Any) -> list[Any]:
        """Every rank's content, by place."""
        return all_gather(content, self._control)
