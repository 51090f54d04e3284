"""The methods as the papers write them, worker by worker, without tricks.

Slow and plain on purpose: this is what the other engines are compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prlc.clock import Arrival
from prlc.engines.base import (
    Engine,
    Job,
    StepReport,
    all_tensors,
    asynchronous_report,
    fixed_seed,
    staying,
    travelling,
)
from prlc.errors import DivergedError
from prlc.methods import Asynchronous, Lazy, Scheduled
from prlc.optimizers import OptimizerFactory, make, set_lr

Vector = list[Tensor]  # a model or an update: parameters, then buffers


class Party:
    """A worker or the server: a model and, unless it is plain SGD, an optimizer."""

    def __init__(self, model: nn.Module, factory: OptimizerFactory | None) -> None:
        self.model = copy.deepcopy(model).train()
        self.optimizer = make(factory, self.model.parameters()) if factory else None
        self.num_parameters = len(list(model.parameters()))

    def tensors(self) -> Vector:
        return [tensor.detach() for tensor in travelling(self.model)]

    def parameters(self) -> Vector:
        return self.tensors()[: self.num_parameters]

    def move(self, update: Vector, share: float = 1.0) -> None:
        for tensor, change in zip(self.tensors(), update, strict=True):
            tensor.add_(change, alpha=share)

    def set(self, values: Vector) -> None:
        for tensor, value in zip(self.tensors(), values, strict=True):
            tensor.copy_(value)

    def state(self) -> dict[str, Any]:
        tensors = [tensor.detach() for tensor in all_tensors(self.model)]
        optimizer = self.optimizer.state_dict() if self.optimizer else None
        return copy.deepcopy({"tensors": tensors, "optimizer": optimizer})

    def load_state(self, state: dict[str, Any]) -> None:
        for tensor, saved in zip(all_tensors(self.model), state["tensors"], strict=True):
            tensor.detach().copy_(saved)
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])


class Worker(Party):
    """Computes updates at its own model."""

    def __init__(self, model: nn.Module, factory: OptimizerFactory | None) -> None:
        super().__init__(model, factory)
        self.unsent = [torch.zeros_like(tensor) for tensor in self.tensors()]
        self.steps = 0

    def update(self, job: Job, inputs: Tensor, targets: Tensor, lr: float) -> tuple[float, Vector]:
        """The loss of a batch and the update it asks for; the model itself stays as it is."""
        before = [tensor.clone() for tensor in self.tensors()]
        self.model.zero_grad()
        loss = job.loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is None:
            gradients = [parameter.grad for parameter in self.model.parameters()]
            update = [torch.zeros_like(b) if g is None else -lr * g.to_dense()
                      for b, g in zip(before, gradients, strict=False)]  # fmt: skip
        else:
            set_lr(self.optimizer, lr)
            self.optimizer.step()
            update = _difference(self.parameters(), before[: self.num_parameters])
        update += _difference(self.tensors()[self.num_parameters :], before[self.num_parameters :])
        self.set(before)
        self.steps += 1
        return float(loss.detach()), update


class Server(Party):
    """Holds the global model."""

    def apply(self, update: Vector) -> None:
        """Add a mean update, or hand it to the server's optimizer as a negative gradient."""
        if self.optimizer is None:
            self.move(update)
            return
        buffers = [torch.zeros_like(change) for change in update]
        buffers[self.num_parameters :] = update[self.num_parameters :]
        for parameter, change in zip(self.model.parameters(), update, strict=False):
            parameter.grad = -change
        self.optimizer.step()
        self.move(buffers)


class Reference(Engine):
    """The oracle."""

    def __init__(self, job: Job, arrivals: Iterator[Arrival] | None = None) -> None:
        super().__init__(job, arrivals)
        self.data = job.data.to(job.device)
        self.batches = job.batches()
        model = copy.deepcopy(job.model).to(job.device)
        P = job.num_workers
        self.server = Server(model, job.server_optimizer)
        self.workers = [Worker(model, job.optimizer) for _ in range(P)]
        if isinstance(job.method, Lazy):
            # A gradient here is an update divided by its learning rate.
            self.gradients: list[Vector | None] = [None] * P
            self.history: list[float] = []
            self.smoothness = [job.method.initial_smoothness()] * P
            self.moved_sq = [0.0] * P
            self.asked = np.ones(P, bool)

    def _scheduled(self, method: Scheduled, step: int) -> StepReport:
        P = len(self.workers)
        losses, updates = zip(*(self._update(i, step, step) for i in range(P)), strict=True)
        for worker, update in zip(self.workers, updates, strict=True):
            worker.unsent = _sum([worker.unsent, update])
        push = bool(method.due(step))
        if push:
            total = _sum([worker.unsent for worker in self.workers])
            _check_sum(total, updates, step)
            self.server.apply([change / P for change in total])
            for worker in self.workers:
                worker.unsent = [torch.zeros_like(change) for change in worker.unsent]
        pulls = method.pulls(self.job.seed, np.arange(P), step)
        for i, worker in enumerate(self.workers):
            if pulls[i]:
                worker.set(self.server.tensors())
            else:
                worker.move(updates[i], method.compensation)
        return StepReport(float(np.mean(losses)), np.ones(P, bool), np.full(P, push), pulls)

    def _lazy(self, method: Lazy, step: int) -> StepReport:
        P, n, lr = len(self.workers), self.server.num_parameters, self.job.lr(step)
        computes = self.asked if method.asked_by_server else np.ones(P, bool)
        pushes = np.zeros(P, bool)
        losses, buffers = [], []
        for i in range(P):
            if not computes[i]:
                continue
            loss, update = self._update(i, step, step)
            losses.append(loss)
            gradient = [change / lr for change in update[:n]]
            pushes[i] = self._wants_push(method, i, gradient)
            if pushes[i]:
                self.gradients[i] = gradient
                buffers.append(update[n:])
        # Old gradients serve again; of buffers, only those that came count.
        total = _sum([gradient for gradient in self.gradients if gradient is not None])
        _check_sum(total, [g or [] for g in self.gradients], step)
        mean = [lr * gradient / P for gradient in total]
        if buffers:
            mean += [change / len(buffers) for change in _sum(buffers)]
        else:
            mean += [torch.zeros_like(tensor) for tensor in self.server.tensors()[n:]]
        before = [tensor.clone() for tensor in self.server.parameters()]
        self.server.apply(mean)
        moved = _distance_sq(self.server.parameters(), before)
        self.history = [*self.history, moved / lr**2][-method.window :]
        pulls = np.array([self._wants_pull(method, i) for i in range(P)])
        self.asked = pulls
        for i in range(P):
            if pulls[i]:
                self.workers[i].set(self.server.tensors())
        loss = float(np.mean(losses)) if losses else float("nan")
        return StepReport(loss, computes, pushes, pulls)

    def _wants_push(self, method: Lazy, i: int, gradient: Vector) -> bool:
        """LAG-WK's trigger (15a). An asked worker always pushes, and the server learns its L_m."""
        old = self.gradients[i]
        if old is None:
            return True
        change_sq = _distance_sq(gradient, old)
        if not method.asked_by_server:
            return self._worthwhile(method, i, change_sq)
        known = (self.smoothness[i], change_sq, self.moved_sq[i])
        self.smoothness[i] = float(method.refine(*map(_scalar, known)))
        return True

    def _wants_pull(self, method: Lazy, i: int) -> bool:
        """LAG-PS's trigger (15b). In LAG-WK everybody pulls."""
        if not method.asked_by_server:
            return True
        moved_sq = _distance_sq(self.server.parameters(), self.workers[i].parameters())
        if not self._worthwhile(method, i, moved_sq):
            return False
        self.moved_sq[i] = moved_sq
        return True

    def _worthwhile(self, method: Lazy, i: int, change_sq: float) -> bool:
        history = torch.tensor(self.history, dtype=torch.float64)
        return bool(method.worthwhile(_scalar(change_sq), _scalar(self.smoothness[i]), history))

    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport:
        P = len(self.workers)
        arrivals = [self.next_arrival() for _ in range(P)]
        losses = []
        for arrival in arrivals:
            worker = self.workers[arrival.worker]
            loss, update = self._update(arrival.worker, worker.steps, step)
            share = method.share(arrival.staleness, P)
            self.server.apply([share * change for change in update])
            worker.set(self.server.tensors())
            losses.append(loss)
        return asynchronous_report(losses, arrivals, P)

    def _update(self, i: int, own_step: int, step: int) -> tuple[float, Vector]:
        """Worker i's loss and update at its `own_step`, checked to be finite."""
        chosen = torch.from_numpy(self.batches.take(np.array([i]), np.array([own_step]))[0])
        chosen = chosen.to(self.job.device)
        inputs, targets = self.data.train_inputs[chosen], self.data.train_targets[chosen]
        with fixed_seed(self.job, own_step, i):
            loss, update = self.workers[i].update(self.job, inputs, targets, self.job.lr(step))
        if not np.isfinite(loss):
            raise DivergedError(i, step)
        if not all(bool(change.isfinite().all()) for change in update):
            raise DivergedError(i, step, "update")
        return loss, update

    def copy_global_model(self, target: nn.Module) -> None:
        with torch.no_grad():
            for tensor, value in zip(travelling(target), self.server.tensors(), strict=True):
                tensor.copy_(value)
            for tensor, value in zip(staying(target), staying(self.workers[0].model), strict=True):
                tensor.copy_(value)

    def _own_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "server": self.server.state(),
            "workers": [worker.state() for worker in self.workers],
            "unsent": [worker.unsent for worker in self.workers],
            "steps": [worker.steps for worker in self.workers],
        }
        if isinstance(self.job.method, Lazy):
            state["gradients"] = self.gradients
            state["history"] = self.history
            state["smoothness"] = self.smoothness
            state["moved_sq"] = self.moved_sq
            state["asked"] = self.asked.tolist()
        return copy.deepcopy(state)

    def _load_own_state(self, state: dict[str, Any]) -> None:
        state = _to_device(state, self.job.device)
        self.server.load_state(state["server"])
        for i, worker in enumerate(self.workers):
            worker.load_state(state["workers"][i])
            worker.unsent = state["unsent"][i]
            worker.steps = state["steps"][i]
        if isinstance(self.job.method, Lazy):
            self.gradients = state["gradients"]
            self.history = state["history"]
            self.smoothness = state["smoothness"]
            self.moved_sq = state["moved_sq"]
            self.asked = np.array(state["asked"])


def _to_device(state: Any, device: torch.device) -> Any:
    """A copy of nested containers with every tensor on `device`."""
    if isinstance(state, Tensor):
        return state.to(device, copy=True)
    if isinstance(state, dict):
        return {key: _to_device(value, device) for key, value in state.items()}
    if isinstance(state, list):
        return [_to_device(value, device) for value in state]
    return state


def _sum(vectors: Sequence[Vector]) -> Vector:
    """Element by element, in the order of the workers."""
    total = [torch.zeros_like(tensor) for tensor in vectors[0]]
    for vector in vectors:
        total = [a + b for a, b in zip(total, vector, strict=True)]
    return total


def _check_sum(total: Vector, parts: Sequence[Vector], step: int) -> None:
    """Refuse a sum that overflows though its parts do not; name the worker with the largest."""
    if not all(bool(tensor.isfinite().all()) for tensor in total):
        sizes = [max((float(t.abs().max()) for t in part), default=0.0) for part in parts]
        raise DivergedError(int(np.argmax(sizes)), step, "update")


def _difference(after: Vector, before: Vector) -> Vector:
    return [a - b for a, b in zip(after, before, strict=True)]


def _distance_sq(a: Vector, b: Vector) -> float:
    return sum(float(change.double().square().sum()) for change in _difference(a, b))


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
