"""Simulated time in a network, one clock for each way to synchronise.

RunAheadClock  workers wait only for the models that they pull
BarrierClock   all workers start a step together; the caller says who does what in it
ArrivalClock   asynchronous: the server applies each push as it arrives

All are deterministic. Messages share the server's link fairly (see `links`) and arrive `latency`
after their last byte left. There are no request messages: both sides know who pushes and pulls
when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, count, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prlc.methods.asgd import Gate
from prlc.network import Network
from prlc.network.links import ServerLinks

__all__ = [
    "Arrival",
    "ArrivalClock",
    "BarrierClock",
    "Communication",
    "Exchange",
    "Mask",
    "RunAheadClock",
]

Mask = NDArray[np.bool_]
"""One flag per worker, shape (num_workers,)."""


class Exchange(NamedTuple):
    """The messages of a step."""

    pushes: bool | Mask
    """Who pushes; True: all, False: nobody."""
    pulls: Mask
    computes: Mask | None = None
    """Who computes; None: all."""
    down: Sequence[float] | None = None
    """The bytes that each worker pulls; None: `bytes_down`."""
    up: float | None = None
    """The bytes that a worker pushes; None: `bytes_up`."""


Communication = Callable[[int], Exchange | tuple[bool, Mask]]
"""Maps a step to its messages."""

_BLOCK = 256  # steps whose compute times are drawn at once


def _step_times(
    network: Network, num_workers: int, base: float, seed: int, worker: int
) -> Iterator[float]:
    """The compute times of one worker's steps 0, 1, 2, ..."""

    def blocks() -> Iterator[Iterable[float]]:
        for start in count(0, _BLOCK):
            steps = np.arange(start, start + _BLOCK)
            times = network.compute_times(seed, worker, steps, base, num_workers=num_workers)
            yield repeat(float(times[0])) if network.spread == 0 else times.tolist()

    return chain.from_iterable(blocks())


@dataclass(slots=True)
class _Step:
    """State of an incomplete step."""

    pushes: list[bool]
    is_push: bool
    pulls: list[bool]
    computes: list[bool] | None
    down: Sequence[float] | None
    up: float | None
    last_push: int  # the last step up to this one with pushes, or -1
    missing: int  # pushes still to leave; in a step without pushes, workers still computing
    waiting: list[tuple[int, float | None]] = field(default_factory=list)
    """Workers that wait for this step's model, and the bytes they pull."""
    done: bool = False  # on its own; complete once all steps before it are done too


class RunAheadClock:
    """Workers run ahead: one that does not pull starts its next step while its push is sent.

    A worker that pulls at step t waits for the model w_{t+1}, which exists once all pushes of
    steps up to t have arrived. No worker is more than the network's `window` steps ahead of the
    last complete step. To resume, ask for a later step: the clock replays.

    Without contention, running ahead is never slower than a barrier. With contention it can be:
    a push sent ahead takes its share of the server's link from a message that another worker is
    waiting for. A small window limits this.

    With a `delay`, a worker continues when a pull begins, and waits for it only after computing the
    step that uses it, `delay` steps later. Its next pull begins after that.
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
        schedule: Communication,
        delay: int = 0,
    ) -> None:
        self._links = ServerLinks(network, num_workers, bytes_up, bytes_down)
        self._latency = network.latency
        self._num_workers = num_workers
        self._schedule, self._delay = schedule, delay
        self._window = network.window
        self._times = [
            _step_times(network, num_workers, step_seconds, seed, worker)
            for worker in range(num_workers)
        ]
        self._now = 0.0
        # (time, step, worker): the worker finishes computing; worker -1: the last push arrives.
        self._events: list[tuple[float, int, int]] = []
        self._steps: dict[int, _Step] = {}  # first incomplete step to that of the furthest worker
        self._step_of = [0] * num_workers  # the step that each worker computed last, and when
        self._computed_at = [0.0] * num_workers
        self._last_push = -1
        self._complete = 0  # number of complete steps
        self._finished: dict[int, float] = {}  # their times, as far back as still needed
        self._asked = 0
        self._blocked: list[tuple[int, int, float]] = []  # (worker, step, earliest) by the window
        # Of late pulls: the step that uses it, when it arrives (None: under way), who is stuck in
        # front of its next step, and who wants the model of a step once its pull is there.
        self._use_at: list[int | None] = [None] * num_workers
        self._arrival: list[float | None] = [None] * num_workers
        self._parked: list[tuple[int, float] | None] = [None] * num_workers
        self._wanted: list[tuple[int, float | None] | None] = [None] * num_workers
        for worker in range(num_workers):
            self._begin(worker, 0, 0.0)

    def finish(self, step: int) -> float:
        """When `step` and all before it are complete: computed, with all pushes arrived.

        Ask for steps in order; skipping steps or repeating the last is fine.
        """
        if step < self._asked:
            raise ValueError(f"Steps cannot go back: asked for {step} after {self._asked}.")
        self._asked = step
        while self._complete <= step:
            self._advance()
        return self._finished[step]

    def _advance(self) -> None:
        """Process the next event."""
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
        """The worker starts the step as soon as the window allows; its link is free."""
        if self._window is not None and step >= self._window:
            gate = step - self._window
            if gate >= self._complete:
                self._blocked.append((worker, step, earliest))
                return
            earliest = max(earliest, self._finished[gate])
        if self._use_at[worker] == step - 1 and self._delay:
            arrival = self._arrival[worker]
            if arrival is None:
                self._parked[worker] = (step, earliest)
                return
            earliest = max(earliest, arrival)
        state = self._steps.get(step) or self._new_step(step)
        computed = earliest + next(self._times[worker])
        if state.computes is not None and not state.computes[worker]:
            computed = earliest
        if state.pushes[worker] and computed < self._now:
            # Computed behind the former push: the next one leaves at once.
            self._computed(worker, step, computed)
        else:
            heappush(self._events, (computed, step, worker))

    def _new_step(self, step: int) -> _Step:
        """Workers take their steps in order, so the first one to get here does it for all."""
        P, given = self._num_workers, Exchange(*self._schedule(step))
        pushes = [given.pushes] * P if isinstance(given.pushes, bool) else given.pushes.tolist()
        is_push = any(pushes)
        if is_push:
            self._last_push = step
        self._steps[step] = state = _Step(
            pushes,
            is_push,
            given.pulls.tolist(),
            None if given.computes is None else given.computes.tolist(),
            given.down,
            given.up,
            self._last_push,
            sum(pushes) if is_push else P,
        )
        return state

    def _computed(self, worker: int, step: int, time: float) -> None:
        """The worker has computed the step, perhaps while its previous push was under way.

        A step computed behind a push affects no other worker until that push has left, so it is
        processed only then. Events therefore do not pile up, however far the worker is ahead, and
        `time` may lie before now.
        """
        self._step_of[worker], self._computed_at[worker] = step, time
        state = self._steps[step]
        if state.pushes[worker]:
            self._links.push(self._now, worker, state.up)
            return
        if not state.is_push:
            state.missing -= 1
        self._go_on(worker, step, state)
        if not state.is_push and state.missing == 0:
            state.done = True
            self._settle()

    def _go_on(self, worker: int, step: int, state: _Step) -> None:
        """The worker has done its part of the step: it pulls, or starts the next one."""
        earliest = self._computed_at[worker]
        if not state.pulls[worker]:
            self._begin(worker, step + 1, earliest)
            return
        size = None if state.down is None else state.down[worker]
        if self._delay == 0:
            self._want(worker, state.last_push, size)
            return
        if self._use_at[worker] == step:
            arrival = self._arrival[worker]
            if arrival is None:  # its next pull begins when the one before is there
                self._wanted[worker] = (step, size)
                self._begin(worker, step + 1, earliest)
                return
            earliest = max(earliest, arrival)
        self._begin_pull(worker, step, size)
        self._begin(worker, step + 1, earliest)

    def _begin_pull(self, worker: int, step: int, size: float | None) -> None:
        self._use_at[worker], self._arrival[worker] = step + self._delay, None
        self._want(worker, step, size)

    def _want(self, worker: int, step: int, size: float | None) -> None:
        """Send the worker the model of a step, as soon as it exists."""
        state = self._steps.get(step)
        if state is not None and not state.done:
            state.waiting.append((worker, size))
        else:
            self._links.pull(self._now, worker, size)

    def _pushed(self, worker: int) -> None:
        """The last byte of the worker's push has left."""
        step = self._step_of[worker]
        state = self._steps[step]
        self._go_on(worker, step, state)
        state.missing -= 1
        if state.missing == 0:
            heappush(self._events, (self._now + self._latency, step, -1))

    def _arrived(self, step: int) -> None:
        """All pushes of the step have arrived: send its model to those who wait."""
        state = self._steps[step]
        for worker, size in state.waiting:
            self._links.pull(self._now, worker, size)
        state.done = True
        self._settle()

    def _pulled(self, worker: int) -> None:
        """The last byte of the worker's model has left."""
        arrival = self._now + self._latency
        if self._delay == 0:
            self._begin(worker, self._step_of[worker] + 1, arrival)
            return
        self._arrival[worker] = arrival
        parked, self._parked[worker] = self._parked[worker], None
        if parked is not None:
            self._begin(worker, parked[0], max(parked[1], arrival))
        wanted, self._wanted[worker] = self._wanted[worker], None
        if wanted is not None:
            self._begin_pull(worker, *wanted)

    def _settle(self) -> None:
        """Complete all steps that can be, and release workers that the window held back."""
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
    """All workers start a step together, once the previous step is over for all.

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
        self._first = 0  # the step of the first row of `_times`
        self._times = np.empty((0, num_workers))

    def step(
        self,
        step: int,
        computes: Mask,
        pushes: Mask,
        pulls: Mask,
        down: Sequence[float] | None = None,
        up: float | None = None,
    ) -> float:
        """Play one step; returns the time at which the server's new model exists.

        Masks have shape (num_workers,). A worker that computes pushes when it has computed, any
        other pushes at once: an update, or `up` bytes of it. When all pushes have arrived (without
        pushes: when all have computed), the server sends the model, or `down` bytes of it, to
        those who pull.
        """

        def push(now: float, worker: int) -> None:
            self._links.push(now, worker, up)

        ready = np.where(computes, self.now + self._row(step), self.now)
        computed = max(self.now, float(ready.max()))
        pushers = np.flatnonzero(pushes)
        order = pushers[np.argsort(ready[pushers], kind="stable")]
        model = computed
        if len(order):
            model = self._transfer(push, ready[order].tolist(), order.tolist())
        pullers = np.flatnonzero(pulls).tolist()
        over = model
        if pullers:

            def send(now: float, worker: int) -> None:
                self._links.pull(now, worker, None if down is None else down[worker])

            over = self._transfer(send, [model] * len(pullers), pullers)
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
        """The compute times of all workers at a step, shape (num_workers,)."""
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
    """A push that reaches the server and is applied."""

    worker: int
    seconds: float
    staleness: int  # updates applied since the model that this one was computed at


class ArrivalClock:
    """Asynchronous SGD: an endless iterator of arrivals, in order of time.

    Each worker computes, pushes, and starts again when it has the server's reply: the model just
    after its own push was applied or, if it is then more than `window` steps ahead of the slowest,
    as soon as it is not. Simultaneous arrivals come in order of worker number.
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
        window: float = math.inf,
    ) -> None:
        self._links = ServerLinks(network, num_workers, bytes_up, bytes_down)
        self._latency = network.latency
        self._num_workers, self._window = num_workers, window
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
        applied, gate = 0, Gate(self._window, P)
        seen = [0] * P  # number of updates in the model that each worker has
        # (time, arrived, worker): the worker has computed or, if `arrived`, its push is there.
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
            # All events of one moment before their consequences, so that every worker gets its
            # turn even if nothing takes any time.
            workers = []
            while events and events[0][0] == now and events[0][1] == arrived:
                workers.append(heappop(events)[2])
            for worker in workers:
                if arrived:
                    yield Arrival(worker, now, applied - seen[worker])
                    applied += 1
                    for free in gate.applied(worker):
                        seen[free] = applied
                        links.pull(now, free)
                else:
                    links.push(now, worker)
