"""Server and workers of lazy methods (LAG): old gradients serve until fresh ones are worthwhile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prlc.engines.roles.packing import Vector, distance_sq, is_finite
from prlc.engines.roles.rule import ServerRule, Shard, check_model
from prlc.errors import DivergedError
from prlc.methods import Lazy, Mask
from prlc.optim.optimizers import RuleSettings


class LazyServerRole:
    """Keeps every worker's last gradient and, for LAG-PS, the model that each worker has.

    A step: `take` the gradients that came, `finish`; then `decide`, given the sums of `finish` over
    all shards, says who pulls.
    """

    def __init__(self, shard: Shard, method: Lazy, num_workers: int, rule: RuleSettings) -> None:
        self.shard, self._method, self._num_workers = shard, method, num_workers
        self.rule = ServerRule(shard, rule)
        self._gradients: list[Vector | None] = [None] * num_workers
        seen = num_workers if method.asked_by_server else 0
        self._seen = [self._copy() for _ in range(seen)]  # the model of each worker
        self._history: list[float] = []
        self._smoothness = np.full(num_workers, method.initial_smoothness())
        self._moved_sq = np.zeros(num_workers)
        self.asked: Mask = np.ones(num_workers, bool)
        """Who computes in the next step."""
        self._lr = math.nan
        self._changes = np.full(num_workers, math.nan)
        self._buffers: list[Vector] = []

    def take(self, worker: int, update: Vector, lr: float) -> None:
        """Store a worker's fresh gradient: its update divided by its learning rate."""
        of_parameters, of_buffers = self.shard.split(update)
        gradient = [flat / lr for flat in of_parameters]
        old, self._gradients[worker] = self._gradients[worker], gradient
        self._changes[worker] = math.nan if old is None else distance_sq(gradient, old)
        self._buffers.append([flat.clone() for flat in of_buffers])

    @torch.no_grad()
    def finish(self, step: int, lr: float) -> Tensor:
        """Step along the mean of all known gradients; returns squared lengths over this shard.

        First the step's; then each worker's distance from the model; then each worker's change of
        gradient.
        """
        self._lr, P = lr, self._num_workers
        total = [torch.zeros_like(flat) for flat in self.shard.values]
        parameters, means = self.shard.split(total)
        for gradient in self._gradients:
            for flat, part in zip(parameters, gradient or [], strict=gradient is not None):
                flat.add_(part)
        if not is_finite(total):
            raise DivergedError(0, step, "sum of gradients with that")
        for flat in parameters:
            flat.mul_(lr).div_(P)
        for pushed in self._buffers:  # an old change of a running mean must not be applied again
            for flat, part in zip(means, pushed, strict=True):
                flat.add_(part / len(self._buffers))
        before = self._copy()
        self.rule.apply(total, lr)
        check_model(self.shard.values, step)
        now = self.shard.split(self.shard.values)[0]
        distances = [distance_sq(now, seen) for seen in self._seen] or [0.0] * P
        changes = np.nan_to_num(self._changes)
        return torch.tensor([distance_sq(now, before), *distances, *changes], dtype=torch.float64)

    def decide(self, sums: Tensor) -> Mask:
        """Who pulls: by LAG-PS's trigger (15b); in LAG-WK everybody."""
        P, method = self._num_workers, self._method
        moved_sq, distance, change = float(sums[0]), sums[1 : P + 1], sums[P + 1 :]
        changes, self._changes, self._buffers = self._changes, np.full(P, math.nan), []
        self._history = [*self._history, moved_sq / self._lr**2][-method.window :]
        if not method.asked_by_server:
            return np.ones(P, bool)
        known = torch.from_numpy(self._smoothness)
        refined = method.refine(known, change, torch.from_numpy(self._moved_sq))
        self._smoothness = np.where(np.isnan(changes), self._smoothness, refined.numpy())
        history = torch.tensor(self._history, dtype=torch.float64)
        pulls: Mask = method.worthwhile(
            distance, torch.from_numpy(self._smoothness), history
        ).numpy()
        self._moved_sq = np.where(pulls, distance.numpy(), self._moved_sq)
        self.asked = pulls
        return pulls

    def sent(self, worker: int) -> None:
        """Note that the worker gets the current model."""
        if self._seen:
            self._seen[worker] = self._copy()

    def _copy(self) -> Vector:
        return [flat.detach().clone() for flat in self.shard.split(self.shard.values)[0]]

    def state(self) -> dict[str, Any]:
        return self.rule.state() | {
            "gradients": self._gradients,
            "seen": self._seen,
            "history": self._history,
            "smoothness": self._smoothness.tolist(),
            "moved_sq": self._moved_sq.tolist(),
            "asked": self.asked.tolist(),
            "lr": self._lr,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.rule.load_state(state)
        self._gradients, self._seen = state["gradients"], state["seen"]
        self._history = state["history"]
        self._smoothness = np.array(state["smoothness"])
        self._moved_sq = np.array(state["moved_sq"])
        self.asked = np.array(state["asked"])
        self._lr = state["lr"]


class LazyWorkerRole:
    """LAG-WK's worker: pushes when its gradient has changed enough."""

    def __init__(self, method: Lazy, num_parameters: list[int]) -> None:
        self._method, self._num_parameters = method, num_parameters
        self._gradient: Vector | None = None  # last pushed
        self._history: list[float] = []

    def wants_push(self, update: Vector, lr: float) -> bool:
        """LAG-WK's trigger (15a). Remembers a gradient that is worth a push."""
        gradient = [flat / lr for flat in self.parameters(update)]
        if self._gradient is not None:
            change, smoothness, history = (
                torch.tensor(value, dtype=torch.float64)
                for value in (
                    distance_sq(gradient, self._gradient),
                    self._method.initial_smoothness(),
                    self._history,
                )
            )
            known = bool(change.isfinite())  # otherwise the server shall see it, and refuse it
            if known and not bool(self._method.worthwhile(change, smoothness, history)):
                return False
        self._gradient = gradient
        return True

    def pulled(self, before: Vector, now: Vector, lr: float) -> None:
        """Note how far the server moved, from the models before and after a pull."""
        moved_sq = distance_sq(self.parameters(now), before) / lr**2
        self._history = [*self._history, moved_sq][-self._method.window :]

    def parameters(self, vector: Vector) -> Vector:
        """A vector without its buffers."""
        return [flat[:n] for flat, n in zip(vector, self._num_parameters, strict=True)]

    def state(self) -> dict[str, Any]:
        return {"gradient": self._gradient, "history": self._history}

    def load_state(self, state: dict[str, Any]) -> None:
        self._gradient, self._history = state["gradient"], state["history"]
