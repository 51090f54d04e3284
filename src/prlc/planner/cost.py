"""What the steps of a method cost on a network: time and bytes, by the clock, without training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from prlc.engines import Job
from prlc.methods import Scheduled
from prlc.network import Network

#: What a plan may save.
GOALS = ("time", "bytes")


@dataclass(frozen=True)
class Cost:
    """Simulated seconds, and bytes in both directions together."""

    seconds: float
    bytes: float

    def of(self, goal: str) -> float:
        return self.seconds if goal == "time" else self.bytes

    def times(self, factor: float) -> Cost:
        return Cost(self.seconds * factor, self.bytes * factor)


class Price:
    """The cost of any number of steps of a job's method, computed as far as asked."""

    def __init__(self, job: Job, network: Network) -> None:
        assert isinstance(job.method, Scheduled)
        self._timeline, self._timetable = job.timeline(network), job.timetable()
        self._sizes = job.sizes()
        self._seconds, self._bytes = [0.0], [0.0]

    def after(self, steps: int) -> Cost:
        return Cost(self.of("time", steps), self.of("bytes", steps))

    def of(self, goal: str, steps: int) -> float:
        """One of the two; bytes take no clock."""
        known, next_ = (
            (self._seconds, self._end_of) if goal == "time" else (self._bytes, self._bytes_after)
        )
        while len(known) <= steps:
            known.append(next_(len(known) - 1))
        return known[steps]

    def _end_of(self, step: int) -> float:
        turn = self._timetable[step]
        self._timeline.record(step, turn.computes, turn.pushes, turn.pulls)
        seconds = self._timeline.seconds()
        assert seconds is not None, "there is no network"
        return seconds

    def _bytes_after(self, step: int) -> float:
        turn = self._timetable[step]
        sent = int(turn.pushes.sum()) * self._sizes.push + int(self._sizes.pulls(turn).sum())
        return self._bytes[step] + sent


#: What may limit a run, and what a network is told to be without it.
_FREE: dict[str, dict[str, Any]] = {
    "latency": {"latency": 0.0},
    "bandwidth": dict.fromkeys(("server_up", "server_down", "worker_up", "worker_down"), math.inf),
    "compute": {"step_seconds": 0.0},
}


def infinitely_fast(network: Network) -> Network:
    """The same workers on a network that takes no time."""
    return replace(network, **_FREE["latency"], **_FREE["bandwidth"])


def saved_if_free(job: Job, network: Network, steps: int) -> dict[str, float]:
    """The share of the time that each resource would save if it were infinitely fast."""
    whole = Price(job, network).after(steps).seconds

    def saved(changes: dict[str, Any]) -> float:
        left = Price(job, replace(network, **changes)).after(steps).seconds
        return max(0.0, 1 - left / whole) if whole > 0 else 0.0

    return {name: saved(changes) for name, changes in _FREE.items()}
