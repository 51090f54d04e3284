"""The keeper of the global model, or of one shard of it: takes pushes, hands out models.

There is one for each family of methods. Each has `step`, which does what the server does in a
step, and returns None when all workers have said goodbye.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.engines.base import StepReport
from prlc.engines.distributed.inbox import Inbox, Outbox
from prlc.engines.distributed.member import bad_update
from prlc.engines.distributed.packing import Vector, is_finite
from prlc.engines.distributed.terms import Terms
from prlc.engines.distributed.wire import Kind, Note, Wire
from prlc.errors import ConfigError
from prlc.methods import Mask
from prlc.optimizers import OptimizerFactory, make, needs_whole_tensors

log = logging.getLogger("prlc")


@dataclass
class Shard:
    """The part of the global model that one keeper has."""

    values: Vector
    num_parameters: list[int]
    """How many elements of each vector are parameters; buffers follow."""

    def split(self, vector: Vector) -> tuple[Vector, Vector]:
        """The parameters and the buffers of a vector like `values`, as views."""
        pairs = list(zip(vector, self.num_parameters, strict=True))
        return [flat[:n] for flat, n in pairs], [flat[n:] for flat, n in pairs]


class Keeper(ABC):
    """What keepers of all families share."""

    #: How many pushes of a worker may be on their way at once.
    depth = 1

    def __init__(
        self,
        terms: Terms,
        wire: Wire,
        ranks: list[int],
        shard: Shard,
        optimizer: OptimizerFactory | None,
        on_save: Callable[[], None],
    ) -> None:
        self.terms, self.shard = terms, shard
        self.bad_updates = np.zeros(terms.num_workers, np.int64)
        self._wire, self._ranks, self._on_save = wire, ranks, on_save
        self._inbox = Inbox(wire, ranks, self._zeros, self.depth)
        self._outbox = Outbox(wire, ranks)
        self._optimizer = None
        if optimizer is not None:
            parameters, _ = shard.split(shard.values)
            self._optimizer = make(optimizer, [p.requires_grad_() for p in parameters])
            if needs_whole_tensors(self._optimizer):
                raise ConfigError(
                    f"The server optimizer {type(self._optimizer).__name__} looks at tensors as a "
                    "whole, but real processes keep the global model as flat vectors. Choose one "
                    "that treats every number by itself, such as SGD or Adam."
                )

    @abstractmethod
    def begin(self, step: int) -> None:
        """Ask for the first messages, once the state is loaded; `step` comes first."""

    @abstractmethod
    def step(self, step: int) -> StepReport | None:
        """What the server does in a step."""

    def dismiss(self) -> Mask:
        """Let workers go that are still at work after the last step; whose updates come too late.

        They did travel, so they count as traffic. Only an asynchronous method has such.
        """
        return np.zeros(self.terms.num_workers, bool)

    def hand_out(self) -> None:
        """Send the final model to all."""
        for worker in range(self.terms.num_workers):
            self._outbox.model(worker, self.shard.values)
        self._outbox.settle_all()

    def close(self) -> None:
        """Until everything has left."""
        self._outbox.settle_all()

    def _zeros(self) -> Vector:
        return [torch.zeros_like(flat) for flat in self.shard.values]

    def _accepts(self, note: Note, worker: int) -> bool:
        """Whether a worker has an update to give; it may have left out bad ones itself."""
        has_one = note.kind is Kind.UPDATE
        bad = max(note.bad, int(not has_one))
        if bad:
            self._refuse(note.kind, worker, note.step, bad)
        return has_one

    def _checked(self, note: Note, worker: int, what: str) -> Vector | None:
        """The update that a note tells of, if it may reach the model."""
        if not self._accepts(note, worker):
            return None
        update = self._inbox.update(worker, what)
        if is_finite(update):
            return update
        self._refuse(Kind.INFINITE, worker, note.step)
        return None

    def _refuse(self, kind: Kind, worker: int, step: int, count: int = 1) -> None:
        """Leave out a bad update; who stops at such stops here."""
        self.bad_updates[worker] += count
        error = bad_update(kind, worker, step)
        if self.terms.on_bad_update == "stop":
            self._wire.cause = error
            raise error
        log.warning("Left out: %s", error)

    @torch.no_grad()
    def _apply(self, update: Vector) -> None:
        """Add an update, or hand its parameters to the server's optimizer as minus a gradient."""
        if self._optimizer is None:
            add(self.shard.values, update)
            return
        changes, of_buffers = self.shard.split(update)
        parameters: list[Tensor] = self._optimizer.param_groups[0]["params"]
        for parameter, change in zip(parameters, changes, strict=True):
            parameter.grad = -change
        self._optimizer.step()
        _, buffers = self.shard.split(self.shard.values)
        add(buffers, of_buffers)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of this shard, as copies."""
        return {
            "values": [flat.detach().clone() for flat in self.shard.values],
            "optimizer": self._optimizer.state_dict() if self._optimizer else None,
            "bad_updates": self.bad_updates.tolist(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        for flat, saved in zip(self.shard.values, state["values"], strict=True):
            flat.copy_(saved)
        if self._optimizer:
            self._optimizer.load_state_dict(state["optimizer"])
        self.bad_updates[:] = state["bad_updates"]


def mean_loss(losses: Sequence[float]) -> float:
    """The mean of those that are known: not of a worker whose update was left out."""
    known = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(known)) if known else math.nan


def add(values: Vector, update: Vector) -> None:
    """Add an update, in place."""
    for flat, change in zip(values, update, strict=True):
        flat.add_(change)
