"""When each step of a run would be over on a given network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from prlc.clock import Arrival, ArrivalClock, BarrierClock, RunAheadClock
from prlc.engines.base import Job, StepReport, fixed_seed
from prlc.errors import ConfigError
from prlc.methods import Asynchronous, Mask, Scheduled
from prlc.network import Network


class Timeline:
    """Gives the steps of a run their simulated time.

    Scheduled methods run ahead unless the network says otherwise; lazy ones meet at a barrier,
    since who communicates is known only step by step; asynchronous ones bring their own times.
    """

    def __init__(self, job: Job, network: Network) -> None:
        traffic = job.traffic()
        settings: dict[str, Any] = {
            "bytes_up": traffic.bytes_per_push,
            "bytes_down": traffic.bytes_per_pull,
            "step_seconds": network.compute_seconds(flops_per_step(job)),
            "seed": job.seed,
        }
        self._job, self._network = job, network
        self._base_seconds: float = settings["step_seconds"]
        self._last_step = -1
        self._seconds = 0.0
        self._passed = 0  # arrivals of the clock beside real processes
        self._run_ahead: RunAheadClock | None = None
        self._barrier: BarrierClock | None = None
        self._arrivals: ArrivalClock | None = None
        if isinstance(job.method, Asynchronous):
            self._arrivals = ArrivalClock(network, job.num_workers, **settings)
        elif isinstance(job.method, Scheduled) and network.run_ahead:
            schedule = DrawnSchedule(job.method, job.num_workers, job.seed)
            self._run_ahead = RunAheadClock(network, job.num_workers, **settings, schedule=schedule)
        else:
            self._barrier = BarrierClock(network, job.num_workers, **settings)

    def arrivals(self, steps_done: int = 0) -> Iterator[Arrival] | None:
        """For asynchronous methods: whose update reaches the server, after so many steps."""
        if self._arrivals is None:
            return None
        return islice(self._arrivals, steps_done * self._job.num_workers, None)

    def record(self, step: int, report: StepReport) -> None:
        """A step was taken."""
        self._last_step = step
        if self._barrier is not None:
            pushes, pulls = report.pushes.astype(bool), report.pulls.astype(bool)
            self._seconds = self._barrier.step(step, report.computes, pushes, pulls)
        elif report.seconds is not None:
            self._seconds = report.seconds
        elif self._arrivals is not None:
            self._run_beside(self._arrivals, step)

    def _run_beside(self, arrivals: ArrivalClock, step: int) -> None:
        """Real processes do not follow the clock; what it would say of them is told anyway."""
        P = self._job.num_workers
        for arrival in islice(arrivals, (step + 1) * P - self._passed):
            self._seconds = arrival.seconds
        self._passed = (step + 1) * P

    def seconds(self) -> float:
        """How long it took until the server had the model of the last step recorded."""
        if self._run_ahead is not None and self._last_step >= 0:
            self._seconds = self._run_ahead.finish(self._last_step)
        return self._seconds

    def step_seconds(self, worker: int, step: int) -> float:
        """How long a worker computes at a step."""
        P, seed = self._job.num_workers, self._job.seed
        times = self._network.compute_times(
            seed, worker, np.array([step]), self._base_seconds, num_workers=P
        )
        return float(times[0])

    def state(self) -> dict[str, float]:
        """What `load_state` needs. Run-ahead and arrivals replay: they depend on nothing else."""
        now = self._barrier.now if self._barrier is not None else 0.0
        return {"last_step": self._last_step, "seconds": self.seconds(), "now": now}

    def load_state(self, state: dict[str, float]) -> None:
        self._last_step = int(state["last_step"])
        self._seconds = state["seconds"]
        if self._barrier is not None:
            self._barrier.now = state["now"]


class DrawnSchedule:
    """What the clock asks of a scheduled method, drawn for many steps in one go."""

    def __init__(self, method: Scheduled, num_workers: int, seed: int, block: int = 256) -> None:
        self._method, self._seed, self._block = method, seed, block
        self._workers = np.arange(num_workers)
        self._start, self._pulls = 0, np.zeros((0, num_workers), bool)

    def __call__(self, step: int) -> tuple[bool, Mask]:
        if not self._start <= step < self._start + len(self._pulls):
            steps = np.arange(step, step + self._block)[:, None]
            self._pulls = self._method.pulls(self._seed, self._workers, steps)
            self._start = step
        return bool(self._method.due(step)), self._pulls[step - self._start]


def replay(job: Job, network: Network, steps: Sequence[int]) -> list[float]:
    """When so many steps of the job would be over, for each of `steps` in their order.

    For methods whose communication does not depend on what is learnt: scheduled ones and
    asynchronous ones.
    """
    timeline, P = Timeline(job, network), job.num_workers
    arrivals = timeline.arrivals()
    everybody: Mask = np.ones(P, bool)
    schedule = None
    if arrivals is None:
        assert isinstance(job.method, Scheduled)
        schedule = DrawnSchedule(job.method, P, job.seed)

    def report(step: int) -> StepReport:
        if schedule is not None:
            due, pulls = schedule(step)
            return StepReport(math.nan, everybody, everybody & due, pulls)
        assert arrivals is not None
        *_, last = islice(arrivals, P)
        return StepReport(math.nan, everybody, everybody, everybody, last.seconds)

    done, times = 0, []
    for wanted in steps:
        for step in range(done, wanted):
            timeline.record(step, report(step))
        done = wanted
        times.append(timeline.seconds())
    return times


def flops_per_step(job: Job) -> float:
    """Floating-point operations of one worker's step: products and convolutions, both ways.

    This is where a model first meets the data, so here it shows if they do not go together.
    """
    chosen = torch.arange(min(job.batch_size, job.data.num_train))
    if job.data.num_classes is not None:  # with the largest class number among the targets
        chosen[0] = job.data.train_targets.reshape(job.data.num_train, -1).amax(1).argmax()
    inputs = job.data.train_inputs[chosen].to(job.device)
    targets = job.data.train_targets[chosen].to(job.device)
    own = {
        name: p.detach().requires_grad_(p.requires_grad) for name, p in job.model.named_parameters()
    }
    buffers = {name: b.clone() for name, b in job.model.named_buffers()}
    tensors = {**own, **buffers}
    parameters = [p for p in own.values() if p.requires_grad]
    with FlopCounterMode(display=False) as counter, fixed_seed(job, 0):
        try:
            output = torch.func.functional_call(job.model, tensors, (inputs,))
            loss: Any = job.loss(output, targets)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise TypeError(f"the loss is {_described(loss)}")
            torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # whatever a module may raise
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                f"The model, the loss and the data do not go together ({reason[0]}). The model "
                f"must take inputs of shape {tuple(inputs.shape)} and {inputs.dtype}, and the loss "
                "must give one number that depends on its parameters."
            ) from error
    return float(counter.get_total_flops()) * job.batch_size / len(inputs)


def _described(loss: object) -> str:
    if not isinstance(loss, torch.Tensor):
        return f"a {type(loss).__name__}, not a tensor"
    if loss.numel() != 1:
        return f"a tensor of shape {tuple(loss.shape)}, not one number"
    return "detached from the parameters, or all parameters are frozen"
