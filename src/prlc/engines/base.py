"""What every engine takes and gives: a job goes in, steps come out.

A model travels as its floating-point tensors: the parameters, then the buffers (BatchNorm's
running statistics). A worker's update of a parameter comes from its optimizer; its update of a
buffer is what the forward pass changed. Both are treated alike from there on: the server adds the
mean, a pull overwrites, a worker that does not pull applies its share. Integer buffers (BatchNorm
counts its batches) stay with their worker; the server shows those of worker 0.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from prlc.clock import Arrival
from prlc.data import Dataset
from prlc.data.batches import Batches, Indices
from prlc.draws import Purpose, torch_seed
from prlc.errors import ConfigError
from prlc.methods import Asynchronous, Lazy, Mask, Method, Scheduled
from prlc.optimizers import OptimizerFactory
from prlc.traffic import Counts, Traffic, payload_bytes

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Job:
    """What is to be trained, by which method, on whose data."""

    model: nn.Module
    loss: Loss
    data: Dataset
    method: Method
    shards: Sequence[Indices]
    batch_size: int
    lr: Callable[[int], float]
    seed: int = 0
    optimizer: OptimizerFactory | None = None
    server_optimizer: OptimizerFactory | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def num_workers(self) -> int:
        return len(self.shards)

    def batches(self) -> Batches:
        return Batches(self.shards, self.batch_size, self.seed)

    def traffic(self) -> Traffic:
        size = payload_bytes(travelling(self.model))
        return Traffic(self.num_workers, size, size)


class StepReport(NamedTuple):
    """What happened in one step (for ASGD: in as many arrivals as there are workers)."""

    loss: float
    """Mean loss of the batches that were computed."""
    computes: Mask
    pushes: Counts
    """How often each worker pushed; as a mask where that is once at most."""
    pulls: Counts
    seconds: float | None = None
    """Simulated time, where the engine itself follows the clock (asynchronous methods)."""
    staleness: float | None = None


class Engine(ABC):
    """Runs a job one step at a time."""

    def __init__(self, job: Job, arrivals: Iterator[Arrival] | None = None) -> None:
        self.job = job
        self.steps_done = 0
        self.traffic = job.traffic()
        self._arrivals = arrivals

    def begin(self) -> None:  # noqa: B027 (most engines are ready when they are made)
        """Get ready for the first step, once the state is loaded."""

    def finish(self) -> None:  # noqa: B027 (most engines have nothing under way between steps)
        """Let what is still under way after the last step come to its end."""

    @property
    def can_save(self) -> bool:
        """Whether `state` can be had after the step just taken."""
        return True

    def next_arrival(self) -> Arrival:
        """Whose update reaches the server next (asynchronous methods)."""
        if self._arrivals is None:
            raise ConfigError(
                f"{self.job.method.label} applies updates in their order of arrival, "
                "so its engine needs the arrivals of a network clock."
            )
        return next(self._arrivals)

    def step(self) -> StepReport:
        """Run the next step. Raises DivergedError before anything not finite reaches the server."""
        method, step = self.job.method, self.steps_done
        if isinstance(method, Scheduled):
            report = self._scheduled(method, step)
        elif isinstance(method, Lazy):
            report = self._lazy(method, step)
        elif isinstance(method, Asynchronous):
            report = self._asynchronous(method, step)
        else:
            raise TypeError(f"{type(method).__name__} belongs to no family of methods")
        self.traffic.count(report.pushes, report.pulls)
        self.steps_done += 1
        return report

    @abstractmethod
    def _scheduled(self, method: Scheduled, step: int) -> StepReport: ...

    @abstractmethod
    def _lazy(self, method: Lazy, step: int) -> StepReport: ...

    @abstractmethod
    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport: ...

    @abstractmethod
    def copy_global_model(self, target: nn.Module) -> None:
        """Write the server's model into `target`."""

    def state(self) -> dict[str, Any]:
        """Everything needed to continue, as plain containers of tensors and numbers."""
        return {
            "steps_done": self.steps_done,
            "pushes": torch.from_numpy(self.traffic.pushes.copy()),
            "pulls": torch.from_numpy(self.traffic.pulls.copy()),
            "engine": self._own_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        self.steps_done = state["steps_done"]
        self.traffic.pushes[:] = state["pushes"].numpy()
        self.traffic.pulls[:] = state["pulls"].numpy()
        self._load_own_state(state["engine"])

    @abstractmethod
    def _own_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any]) -> None: ...


@contextlib.contextmanager
def fixed_seed(job: Job, *indices: int) -> Iterator[None]:
    """Let torch draw from a stream of these indices' own; the caller's stays as it was."""
    devices = [job.device] if job.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(torch_seed(job.seed, Purpose.MODEL, *indices))
        yield


def travelling(model: nn.Module) -> list[Tensor]:
    """The tensors that a message carries: parameters, then floating-point buffers."""
    return [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]


def staying(model: nn.Module) -> list[Tensor]:
    """The tensors that never travel: integer buffers."""
    return [b for b in model.buffers() if not b.is_floating_point()]


def all_tensors(model: nn.Module) -> list[Tensor]:
    """Every tensor of the model, those that travel first."""
    return [*travelling(model), *staying(model)]


def asynchronous_report(
    losses: Sequence[float], arrivals: Sequence[Arrival], num_workers: int
) -> StepReport:
    """A step of an asynchronous method, from its arrivals."""
    counts = np.bincount([arrival.worker for arrival in arrivals], minlength=num_workers)
    staleness = float(np.mean([arrival.staleness for arrival in arrivals]))
    loss = float(np.mean(losses))
    return StepReport(loss, counts > 0, counts, counts, arrivals[-1].seconds, staleness)
