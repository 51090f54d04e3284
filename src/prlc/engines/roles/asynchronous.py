"""The server of asynchronous methods (ASGD, SSP): applies every update on arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from prlc.engines.roles.packing import Vector
from prlc.engines.roles.rule import ServerRule, Shard
from prlc.methods import Asynchronous
from prlc.methods.asgd import Gate
from prlc.optim.optimizers import RuleSettings


class AsynchronousServerRole:
    """Applies updates in the order of the calls of `take`."""

    def __init__(
        self, shard: Shard, method: Asynchronous, num_workers: int, rule: RuleSettings
    ) -> None:
        self.shard, self._method, self._num_workers = shard, method, num_workers
        self.rule = ServerRule(shard, rule)
        self.applied = 0
        """How many updates have arrived."""
        self.gate = Gate(method.window, num_workers)
        self._missed = np.zeros(num_workers, np.int64)  # applied before a worker's last pull

    @torch.no_grad()
    def take(self, worker: int, update: Vector | None, lr: float) -> tuple[int | None, list[int]]:
        """Apply an arrival; returns its staleness, and who may pull now.

        The staleness is None if there is no usable update.
        """
        staleness = None
        if update is not None:
            staleness = self.applied - int(self._missed[worker])
            share = self._method.share(staleness, self._num_workers)
            self.rule.apply(update if share == 1.0 else [flat * share for flat in update], lr)
        self.applied += 1
        return staleness, self.gate.applied(worker)

    def sent(self, worker: int) -> None:
        """Note that the worker gets the current model."""
        self._missed[worker] = self.applied

    def state(self) -> dict[str, Any]:
        return self.rule.state() | {
            "applied": self.applied,
            "missed": self._missed.tolist(),
            "gate": self.gate.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.rule.load_state(state)
        self.applied = state["applied"]
        self._missed[:] = state["missed"]
        self.gate.load_state(state["gate"])
