"""The time of a step on a network, and its bottleneck: by the network clock, without training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prlc.engines import Job
from prlc.engines.job import flops_per_step
from prlc.methods import PRLC, Mask, Timetable
from prlc.network import Network
from prlc.network.clock import BarrierClock, RunAheadClock

#: PRLC that pulls at every step is NSGD, bit for bit.
NSGD_TWIN = PRLC(1.0)

#: What can slow a step down. In a half-duplex network, where both directions share one budget,
#: `uplink` is the share of the pushes and `downlink` that of the pulls.
RESOURCES = ("compute", "uplink", "downlink", "latency")

_PRICED_STEPS = 1024
_COMPARED_STEPS = 256  # with and without a resource
_MIN_SAVING = 0.05  # a resource that saves less when free is no bottleneck by itself


@dataclass(frozen=True)
class Work:
    """One step's load on the workers and the network: bytes per message, seconds of compute."""

    num_workers: int
    bytes_up: float
    bytes_down: float
    step_seconds: float

    @classmethod
    def of(cls, job: Job, network: Network) -> Work:
        sizes, seconds = job.sizes(), network.compute_seconds(flops_per_step(job))
        return cls(job.num_workers, sizes.push, sizes.pull, seconds)


class StepClock:
    """When each step of a method ends."""

    def __init__(self, network: Network, work: Work, method: PRLC, seed: int) -> None:
        self._timetable = Timetable(method, work.num_workers, seed)
        self._times = [0.0]
        settings: dict[str, Any] = {
            "bytes_up": work.bytes_up,
            "bytes_down": work.bytes_down,
            "step_seconds": work.step_seconds,
            "seed": seed,
        }
        P = work.num_workers
        self._run_ahead: RunAheadClock | None = None
        self._barrier: BarrierClock | None = None
        if network.run_ahead:
            self._run_ahead = RunAheadClock(network, P, **settings, schedule=self._communication)
        else:
            self._barrier = BarrierClock(network, P, **settings)

    def _communication(self, step: int) -> tuple[bool, Mask]:
        turn = self._timetable[step]
        return turn.is_push, turn.pulls

    def seconds(self, steps: float) -> float:
        """The time that `steps` steps take, interpolated between whole ones."""
        before = math.floor(steps)
        self._extend(math.ceil(steps))
        if before == steps:
            return self._times[before]
        start, end = self._times[before], self._times[before + 1]
        return start + (steps - before) * (end - start)

    def steps_within(self, seconds: float, most: int) -> int:
        """How many whole steps fit into `seconds`, at most `most`."""
        while len(self._times) <= most and self._times[-1] <= seconds:
            self._extend(len(self._times))
        return min(most, int(np.searchsorted(self._times, seconds, side="right")) - 1)

    def _extend(self, steps: int) -> None:
        for step in range(len(self._times) - 1, steps):
            if self._run_ahead is not None:
                self._times.append(self._run_ahead.finish(step))
            elif self._barrier is not None:
                turn = self._timetable[step]
                time = self._barrier.step(step, turn.computes, turn.pushes, turn.pulls)
                self._times.append(time)


@dataclass(frozen=True)
class Price:
    """Seconds per step of a method, as they are and with each resource free."""

    seconds_per_step: float
    if_free: dict[str, float]
    """Seconds per step with one resource infinitely fast."""
    bottleneck: str
    """The resource that saves most when free; if none saves much, because others hide it, the
    one that takes longest by itself."""

    def saved(self, resource: str) -> float:
        """The fraction of a step's time saved if the resource were free."""
        if self.seconds_per_step == 0:
            return 0.0
        return max(0.0, 1 - self.if_free[resource] / self.seconds_per_step)


def price(network: Network, work: Work, method: PRLC, seed: int = 0) -> Price:
    """The price of a step of the method, averaged over about a thousand steps."""

    def remaining(free: Sequence[str]) -> float:
        """The fraction of the time that remains if these resources are free."""
        clock = StepClock(*_without(network, work, free), method, seed)
        return min(1.0, clock.seconds(_COMPARED_STEPS) / whole)

    clock = StepClock(network, work, method, seed)
    whole, mean = clock.seconds(_COMPARED_STEPS), clock.seconds(_PRICED_STEPS) / _PRICED_STEPS
    if whole == 0:
        return Price(0.0, dict.fromkeys(RESOURCES, 0.0), RESOURCES[0])
    left = {name: remaining([name]) for name in RESOURCES}
    bottleneck = min(RESOURCES, key=lambda name: left[name])
    if left[bottleneck] > 1 - _MIN_SAVING:
        alone = {name: remaining([r for r in RESOURCES if r != name]) for name in RESOURCES}
        bottleneck = max(RESOURCES, key=lambda name: alone[name])
    return Price(mean, {name: mean * left[name] for name in RESOURCES}, bottleneck)


def _without(network: Network, work: Work, resources: Sequence[str]) -> tuple[Network, Work]:
    """The same with some resources infinitely fast; empty messages need no bandwidth."""
    for name in resources:
        if name == "compute":
            work = replace(work, step_seconds=0.0)
        elif name == "uplink":
            work = replace(work, bytes_up=0.0)
        elif name == "downlink":
            work = replace(work, bytes_down=0.0)
        else:
            network = replace(network, latency=0.0)
    return network, work
