"""What time it is in a simulated network: a clock for each way of taking turns.

RunAheadClock  workers wait only for the models that they pull
BarrierClock   everybody starts a step together; who does what is said step by step
ArrivalClock   asynchronous: the server applies each push as it arrives

All are deterministic. Messages share the server's link fairly (see `links`); a message arrives
`latency` after its last byte left; nobody sends requests, since both sides know the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prlc.links import ServerLinks
from prlc.network import Network

__all__ = ["Arrival", "ArrivalClock", "BarrierClock", "Mask", "RunAheadClock", "Schedule"]

Mask = NDArray[np.bool_]
Schedule = Callable[[int], tuple[bool, Mask]]
"""Of a step: do all workers push at it (or none)? And which workers pull at it?"""

_BLOCK = 256  # compute times drawn at once


def _step_times(
    network: Network, num_workers: int, base: float, seed: int, worker: int
) -> Iterator[float]:
    """The compute times of a worker's steps 0, 1, 2, ..."""
    for start in count(0, _BLOCK):
        steps = np.arange(start, start + _BLOCK)
        times = network.compute_times(seed, worker, steps, base, num_workers=num_workers)
        if network.spread == 0:  # all the same
            yield from repeat(float(times[0]))
        yield from times.tolist()


@dataclass(slots=True)
class _Step:
    """What is known of a step that is not complete."""

    pushes: bool
    pulls: list[bool]
    last_push: int  # the last step up to this one with pushes, -1 if there is none
    missing: int  # pushes still to leave; where there are none, workers still computing
    waiting: list[int] = field(default_factory=list)  # workers that wait for this step's model
    done: bool = False  # by itself; it is complete when all before it are too


class RunAheadClock:
    """Workers run ahead: who does not pull starts its next step at once and pushes meanwhile.

    A worker that pulls at step t waits for the model w_{t+1}, which exists once all pushes of
    steps up to t have arrived. A worker may be at most the network's `window` steps ahead of the
    last complete step. To resume, ask for a later step: the clock replays.

    Where messages do not compete, running ahead is never slower than a barrier. Where they do,
    it can be: a push sent ahead takes its share of the server's link from a message that
    somebody is waiting for. A small window limits that.
    """

    def __init__(
        self,
        network: Network,
        num_workers: int,
        *,
        bytes_up: float,
        bytes_down: float,
        step_seconds: float,
        seed: int,
        schedule: Schedule,
    ) -> None:
        self._links = ServerLinks(network, num_workers, bytes_up, bytes_down)
        self._latency = network.latency
        self._num_workers = num_workers
        self._schedule = schedule
        self._window = network.window
        self._times = [
            _step_times(network, num_workers, step_seconds, seed, worker)
            for worker in range(num_workers)
        ]
        self._now = 0.0
        # (time, step, worker): the worker has computed the step; worker -1: all pushes arrived.
        self._events: list[tuple[float, int, int]] = []
        self._steps: dict[int, _Step] = {}  # from the first incomplete step to the furthest worker
        self._step_of = [0] * num_workers  # the step each worker computed last, and when
        self._computed_at = [0.0] * num_workers
        self._last_push = -1
        self._complete = 0  # how many steps are complete
        self._finished: dict[int, float] = {}  # when they were, as far back as anybody asks
        self._asked = 0
        self._blocked: list[tuple[int, int, float]] = []  # by the window
        for worker in range(num_workers):
            self._begin(worker, 0, 0.0)

    def finish(self, step: int) -> float:
        """When `step` and all before it are complete: computed, and their pushes arrived.

        Ask for steps in order; leaving some out or repeating the last is fine.
        """
        if step < self._asked:
            raise ValueError(f"Steps cannot go back: asked for {step} after {self._asked}.")
        self._asked = step
        while self._complete <= step:
            self._advance()
        return self._finished[step]

    def _advance(self) -> None:
        """Go to the next moment at which something happens."""
        transferred = self._links.next_time()
        if self._events and self._events[0][0] < transferred:
            time, step, worker = heappop(self._events)
            self._now = max(self._now, time)
            if worker < 0:
                self._arrived(step)
            else:
                self._computed(worker, step, time)
            return
        self._now = transferred
        for flow in self._links.finish():
            if flow < self._num_workers:
                self._pushed(flow)
            else:
                self._pulled(flow - self._num_workers)

    def _begin(self, worker: int, step: int, earliest: float) -> None:
        """The worker starts the step when it may; its link is free."""
        if self._window is not None and step >= self._window:
            gate = step - self._window
            if gate >= self._complete:
                self._blocked.append((worker, step, earliest))
                return
            earliest = max(earliest, self._finished[gate])
        if step not in self._steps:
            # Every worker takes its steps in order, so the first to come here does for all.
            pushes, pulls = self._schedule(step)
            if pushes:
                self._last_push = step
            self._steps[step] = _Step(pushes, pulls.tolist(), self._last_push, self._num_workers)
        heappush(self._events, (earliest + next(self._times[worker]), step, worker))

    def _computed(self, worker: int, step: int, time: float) -> None:
        """The worker has computed the step, maybe while its former push was under way.

        What a worker computes behind a push is worked out only when the push has left: until then
        it touches nobody else. So nothing piles up here, however far the worker is ahead, and
        `time` may lie before now.
        """
        self._step_of[worker], self._computed_at[worker] = step, time
        state = self._steps[step]
        if state.pushes:
            self._links.push(self._now, worker)
            return
        if not state.pulls[worker]:
            self._begin(worker, step + 1, time)
        elif state.last_push in self._steps:
            self._steps[state.last_push].waiting.append(worker)
        else:
            self._links.pull(self._now, worker)
        state.missing -= 1
        if state.missing == 0:
            state.done = True
            self._settle()

    def _pushed(self, worker: int) -> None:
        """The last byte of the worker's push has left."""
        step = self._step_of[worker]
        state = self._steps[step]
        if state.pulls[worker]:
            state.waiting.append(worker)
        else:
            self._begin(worker, step + 1, self._computed_at[worker])
        state.missing -= 1
        if state.missing == 0:
            heappush(self._events, (self._now + self._latency, step, -1))

    def _arrived(self, step: int) -> None:
        """All pushes of the step have arrived: its model goes out."""
        state = self._steps[step]
        for worker in state.waiting:
            self._links.pull(self._now, worker)
        state.done = True
        self._settle()

    def _pulled(self, worker: int) -> None:
        """The last byte of the worker's model has left."""
        self._begin(worker, self._step_of[worker] + 1, self._now + self._latency)

    def _settle(self) -> None:
        """Count the steps that are complete, and let go whom the window held back."""
        before = self._complete
        while (state := self._steps.get(self._complete)) and state.done:
            self._finished[self._complete] = self._now
            del self._steps[self._complete]
            self._complete += 1
        needed = min(self._asked, self._complete - (self._window or 0))
        while self._finished and (oldest := next(iter(self._finished))) < needed:
            del self._finished[oldest]
        if self._complete > before:
            blocked, self._blocked = self._blocked, []
            for worker, step, earliest in blocked:
                self._begin(worker, step, earliest)


class BarrierClock:
    """Everybody starts a step together, once the former step is over for all.

    `now` is when the next step starts; set it to resume.
    """

    def __init__(
        self,
        network: Network,
        num_workers: int,
        *,
        bytes_up: float,
        bytes_down: float,
        step_seconds: float,
        seed: int,
    ) -> None:
        self.now = 0.0
        self._network = network
        self._links = ServerLinks(network, num_workers, bytes_up, bytes_down)
        self._num_workers = num_workers
        self._step_seconds = step_seconds
        self._seed = seed
        self._first = 0  # the step of the first row of times drawn
        self._times = np.empty((0, num_workers))

    def step(self, step: int, computes: Mask, pushes: Mask, pulls: Mask) -> float:
        """Play one step; returns when the server's new model exists.

        Who computes and pushes sends its push when it has computed, who only pushes at once. When
        all pushes have arrived (without any: when all have computed) the server sends the model
        to those who pull.
        """
        ready = np.where(computes, self.now + self._row(step), self.now)
        computed = max(self.now, float(ready.max()))
        pushers = np.flatnonzero(pushes)
        order = pushers[np.argsort(ready[pushers], kind="stable")]
        model = computed
        if len(order):
            model = self._transfer(self._links.push, ready[order].tolist(), order.tolist())
        pullers = np.flatnonzero(pulls).tolist()
        over = model
        if pullers:
            over = self._transfer(self._links.pull, [model] * len(pullers), pullers)
        self.now = max(over, computed)
        return model

    def _transfer(
        self, send: Callable[[float, int], None], times: list[float], workers: list[int]
    ) -> float:
        """When the last of the messages that leave at `times` (in order) arrives."""
        links, last = self._links, 0.0
        for time, worker in zip(times, workers, strict=True):
            while links.next_time() < time:
                links.finish()
            send(time, worker)
        while (time := links.next_time()) < math.inf:
            last = time
            links.finish()
        return last + self._network.latency

    def _row(self, step: int) -> NDArray[np.float64]:
        """The compute times of all workers at a step."""
        if not self._first <= step < self._first + len(self._times):
            self._first = step
            self._times = self._network.compute_times(
                self._seed,
                np.arange(self._num_workers),
                np.arange(step, step + _BLOCK)[:, None],
                self._step_seconds,
                num_workers=self._num_workers,
            )
        row: NDArray[np.float64] = self._times[step - self._first]
        return row


class Arrival(NamedTuple):
    """A push that the server applies."""

    worker: int
    seconds: float
    staleness: int  # updates by others since the model that this one was computed at


class ArrivalClock:
    """Asynchronous SGD: an endless iterator of arrivals, in the order of time.

    Each worker computes, pushes, and starts again when the server's answer is there: the model
    just after its own push was applied. Those who arrive at the same time do so in the order of
    their numbers.
    """

    def __init__(
        self,
        network: Network,
        num_workers: int,
        *,
        bytes_up: float,
        bytes_down: float,
        step_seconds: float,
        seed: int,
    ) -> None:
        self._links = ServerLinks(network, num_workers, bytes_up, bytes_down)
        self._latency = network.latency
        self._num_workers = num_workers
        self._times = [
            _step_times(network, num_workers, step_seconds, seed, worker)
            for worker in range(num_workers)
        ]
        self._arrivals = self._run()

    def __iter__(self) -> Iterator[Arrival]:
        return self

    def __next__(self) -> Arrival:
        return next(self._arrivals)

    def _run(self) -> Iterator[Arrival]:
        links, latency, P = self._links, self._latency, self._num_workers
        applied = 0
        seen = [0] * P  # how many updates are in the model that each worker has
        # (time, has it arrived?, worker): a worker has computed, or its push has arrived.
        events = [(next(times), False, worker) for worker, times in enumerate(self._times)]
        events.sort()
        while True:
            transferred = links.next_time()
            if not events or transferred <= events[0][0]:
                for flow in links.finish():
                    if flow < P:
                        heappush(events, (transferred + latency, True, flow))
                    else:
                        ready = transferred + latency + next(self._times[flow - P])
                        heappush(events, (ready, False, flow - P))
                continue
            now, arrived, _ = events[0]
            # All of one moment before what follows from it, so that nobody is left out even if
            # nothing takes any time.
            workers = []
            while events and events[0][0] == now and events[0][1] == arrived:
                workers.append(heappop(events)[2])
            for worker in workers:
                if arrived:
                    yield Arrival(worker, now, applied - seen[worker])
                    applied += 1
                    seen[worker] = applied
                    links.pull(now, worker)
                else:
                    links.push(now, worker)
