"""The simulated time of each step of a run on a given network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypedDict

import numpy as np

from prlc.methods import Asynchronous, Mask, Method, Scheduled, Timetable
from prlc.network.clock import Arrival, ArrivalClock, BarrierClock, Exchange, RunAheadClock
from prlc.network.settings import Network
from prlc.network.traffic import Counts, MessageSizes


class _ClockSettings(TypedDict):
    bytes_up: float
    bytes_down: float
    step_seconds: float
    seed: int


class Timeline:
    """Gives the steps of a run their simulated time.

    Scheduled methods run ahead unless the network says otherwise; lazy ones meet at a barrier,
    since who communicates is known only step by step; asynchronous ones bring their own times.
    """

    def __init__(
        self,
        network: Network | None,
        method: Method,
        num_workers: int,
        *,
        sizes: MessageSizes,
        timetable: Timetable | None,
        step_seconds: float,
        seed: int,
    ) -> None:
        """`network`: None for no clock. `timetable`: of a scheduled method."""
        self._network, self._num_workers = network, num_workers
        self._timetable, self._sizes = timetable, sizes
        self._plain = isinstance(method, Scheduled) and method.trivial
        self._base_seconds, self._seed = step_seconds, seed
        self._last_step = -1
        self._seconds: float | None = None if network is None else 0.0
        self._passed = 0  # arrivals of the clock beside real processes
        self._run_ahead: RunAheadClock | None = None
        self._barrier: BarrierClock | None = None
        self._arrivals: ArrivalClock | None = None
        settings: _ClockSettings = {
            "bytes_up": sizes.push,
            "bytes_down": sizes.pull,
            "step_seconds": step_seconds,
            "seed": seed,
        }
        if network is None:
            return
        if isinstance(method, Asynchronous):
            self._arrivals = ArrivalClock(network, num_workers, **settings, window=method.window)
        elif isinstance(method, Scheduled) and network.run_ahead:
            if (
                method.sample < 1.0
            ):  # sitting out takes no time, so something must hold a worker back
                network = replace(network, window=min(network.window or 2**31, 2 * method.every))
            self._run_ahead = RunAheadClock(
                network,
                num_workers,
                **settings,
                schedule=self._exchange,
                delay=method.delay,
            )
        else:
            self._barrier = BarrierClock(network, num_workers, **settings)

    def arrivals(self, steps_done: int = 0) -> Iterator[Arrival] | None:
        """The arrivals after `steps_done` steps (asynchronous methods)."""
        if self._arrivals is None:
            return None
        return islice(self._arrivals, steps_done * self._num_workers, None)

    def record(
        self,
        step: int,
        computes: Mask,
        pushes: Counts,
        pulls: Counts,
        seconds: float | None = None,
    ) -> None:
        """Record a step: who computed, pushed and pulled, and when, if the engine knows."""
        self._last_step = step
        if self._network is None:
            return
        if self._barrier is not None:
            pushed, pulled = pushes.astype(bool), pulls.astype(bool)
            up = down = None
            if self._timetable is not None and not self._plain:
                turn = self._timetable[step]
                up, down = self._sizes.pushed(turn), self._sizes.pulls(turn).tolist()
            self._seconds = self._barrier.step(step, computes, pushed, pulled, down, up)
        elif seconds is not None:
            self._seconds = seconds
        elif self._arrivals is not None:
            self._run_beside(self._arrivals, step)

    def _run_beside(self, arrivals: ArrivalClock, step: int) -> None:
        """Advance the clock beside real processes, which do not follow it."""
        P = self._num_workers
        for arrival in islice(arrivals, (step + 1) * P - self._passed):
            self._seconds = arrival.seconds
        self._passed = (step + 1) * P

    def seconds(self) -> float | None:
        """When the server had the model of the last step recorded, if known."""
        if self._run_ahead is not None and self._last_step >= 0:
            self._seconds = self._run_ahead.finish(self._last_step)
        return self._seconds

    def _exchange(self, step: int) -> Exchange:
        """The messages of a step of a scheduled method. The clock asks for all steps, in order."""
        assert self._timetable is not None
        over = self._timetable.is_over(step)
        turn = (self._timetable.beyond if over else self._timetable)[step]
        if self._plain:
            return Exchange(turn.is_push, turn.pulls)
        down, up = self._sizes.pulls(turn).tolist(), self._sizes.pushed(turn)
        return Exchange(turn.pushes, turn.pulls, turn.computes, down, up)

    def replay(self, steps: Sequence[int]) -> list[float]:
        """The times at which `steps` (numbers of steps, ascending) are over.

        For methods whose communication does not depend on what is learnt: scheduled and
        asynchronous ones.
        """
        P, arrivals = self._num_workers, self.arrivals()
        everybody: Mask = np.ones(P, bool)
        done, times = 0, []
        for wanted in steps:
            for step in range(done, wanted):
                if self._timetable is not None:
                    turn = self._timetable[step]
                    self.record(step, turn.computes, turn.pushes, turn.pulls)
                else:
                    assert arrivals is not None
                    *_, last = islice(arrivals, P)
                    self.record(step, everybody, everybody, everybody, last.seconds)
            done = wanted
            seconds = self.seconds()
            assert seconds is not None, "there is no network"
            times.append(seconds)
        return times

    def step_seconds(self, worker: int, step: int) -> float:
        """How long a worker computes at a step."""
        assert self._network is not None, "there is no network"
        P, seed = self._num_workers, self._seed
        times = self._network.compute_times(
            seed, worker, np.array([step]), self._base_seconds, num_workers=P
        )
        return float(times[0])

    def state(self) -> dict[str, Any]:
        """What `load_state` needs. Run-ahead and arrivals replay: they depend on nothing else."""
        now = self._barrier.now if self._barrier is not None else 0.0
        return {"last_step": self._last_step, "seconds": self.seconds(), "now": now}

    def load_state(self, state: dict[str, Any]) -> None:
        self._last_step = int(state["last_step"])
        self._seconds = state["seconds"]
        if self._barrier is not None:
            self._barrier.now = state["now"]
            if self._timetable is not None:
                self._sizes.replay(self._timetable, self._last_step + 1)
