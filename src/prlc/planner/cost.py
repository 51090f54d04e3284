"""What a step costs on a network, and which resource makes it slow: the clock, no training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prlc.clock import BarrierClock, RunAheadClock
from prlc.engines import Job
from prlc.methods import PRLC, Mask
from prlc.network import Network
from prlc.timeline import DrawnSchedule, flops_per_step

__all__ = ["NSGD_TWIN", "RESOURCES", "Price", "StepClock", "Work", "price"]

#: PRLC that pulls at every step is NSGD, bit for bit.
NSGD_TWIN = PRLC(1.0)

#: What can make a step slow. In a half-duplex network up and down share one budget; then `uplink`
#: is what the pushes take of it and `downlink` what the pulls take.
RESOURCES = ("compute", "uplink", "downlink", "latency")

_PRICED_STEPS = 1024
_COMPARED_STEPS = 256  # with and without a resource
_SAVES_LITTLE = 0.05  # a resource that saves less than this if it were free does not limit alone


@dataclass(frozen=True)
class Work:
    """What one step asks of the workers and the network."""

    num_workers: int
    bytes_up: float
    bytes_down: float
    step_seconds: float

    @classmethod
    def of(cls, job: Job, network: Network) -> Work:
        """That of a job on this network."""
        traffic = job.traffic()
        seconds = network.compute_seconds(flops_per_step(job))
        return cls(job.num_workers, traffic.bytes_per_push, traffic.bytes_per_pull, seconds)


class StepClock:
    """When the steps of a method are over."""

    def __init__(self, network: Network, work: Work, method: PRLC, seed: int) -> None:
        self._everybody: Mask = np.ones(work.num_workers, bool)
        self._schedule = DrawnSchedule(method, work.num_workers, seed)
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
            self._run_ahead = RunAheadClock(network, P, **settings, schedule=self._schedule)
        else:
            self._barrier = BarrierClock(network, P, **settings)

    def seconds(self, steps: float) -> float:
        """How long so many steps take; between two steps the time is interpolated."""
        before = math.floor(steps)
        self._extend(math.ceil(steps))
        if before == steps:
            return self._times[before]
        start, end = self._times[before], self._times[before + 1]
        return start + (steps - before) * (end - start)

    def steps_within(self, seconds: float, most: int) -> int:
        """How many whole steps fit into a time, `most` at most."""
        while len(self._times) <= most and self._times[-1] <= seconds:
            self._extend(len(self._times))
        return min(most, int(np.searchsorted(self._times, seconds, side="right")) - 1)

    def _extend(self, steps: int) -> None:
        for step in range(len(self._times) - 1, steps):
            if self._run_ahead is not None:
                self._times.append(self._run_ahead.finish(step))
            elif self._barrier is not None:
                push, pulls = self._schedule(step)
                pushes = self._everybody & push
                self._times.append(self._barrier.step(step, self._everybody, pushes, pulls))


@dataclass(frozen=True)
class Price:
    """Seconds per step of a method, and what they would be with a resource free of charge."""

    seconds_per_step: float
    if_free: dict[str, float]
    """Seconds per step if this resource alone were infinitely fast."""
    limit: str
    """The resource that saves most if it is free; if none saves anything by itself, because
    others hide it, the one that takes longest alone."""

    def saved(self, resource: str) -> float:
        """The part of a step's time that goes away if the resource is free."""
        if self.seconds_per_step == 0:
            return 0.0
        return max(0.0, 1 - self.if_free[resource] / self.seconds_per_step)


def price(network: Network, work: Work, method: PRLC, seed: int = 0) -> Price:
    """What a step of the method costs, averaged over about a thousand steps."""

    def part(free: Sequence[str]) -> float:
        """The time that is left if these resources are free, as a part of the whole."""
        clock = StepClock(*_without(network, work, free), method, seed)
        left = clock.seconds(_COMPARED_STEPS) / whole
        return min(1.0, left)

    clock = StepClock(network, work, method, seed)
    whole, mean = clock.seconds(_COMPARED_STEPS), clock.seconds(_PRICED_STEPS) / _PRICED_STEPS
    if whole == 0:
        return Price(0.0, dict.fromkeys(RESOURCES, 0.0), RESOURCES[0])
    left = {name: part([name]) for name in RESOURCES}
    limit = min(RESOURCES, key=lambda name: left[name])
    if left[limit] > 1 - _SAVES_LITTLE:
        alone = {name: part([other for other in RESOURCES if other != name]) for name in RESOURCES}
        limit = max(RESOURCES, key=lambda name: alone[name])
    return Price(mean, {name: mean * left[name] for name in RESOURCES}, limit)


def _without(network: Network, work: Work, resources: Sequence[str]) -> tuple[Network, Work]:
    """The same with these resources infinitely fast: an empty message needs no bandwidth."""
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
