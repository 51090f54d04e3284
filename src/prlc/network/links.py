"""Transfers that share a link fairly.

A fluid model: at every moment each flow has its max-min fair share of the link. Shares are equal
unless the worker's own link (the flow's cap) is slower; what a capped flow leaves over goes to the
others. Flows with the same cap always have the same rate, so one counter per distinct cap suffices:
the bytes served so far to any flow of that cap. A flow is finished when its counter reaches a mark
fixed at its start. A start or a finish costs O(log flows + distinct caps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heappop, heappush

from prlc.errors import ConfigError
from prlc.network import Network

__all__ = ["FairLink", "ServerLinks"]


class FairLink:
    """One link of `capacity` bytes/s; `caps` maps each flow's number to its largest rate.

    The caller moves time forward: it asks for `next_time`, then either starts flows no later than
    that or calls `finish`.
    """

    def __init__(self, capacity: float, caps: Mapping[int, float]) -> None:
        self._capacity = capacity
        self._caps = sorted(set(caps.values()))
        self._lane_of = {flow: self._caps.index(cap) for flow, cap in caps.items()}
        lanes = len(self._caps)
        # A lane for each distinct cap: its active flows as (mark, flow), the bytes served to any
        # one of them, and their rate.
        self._flows: list[list[tuple[float, int]]] = [[] for _ in range(lanes)]
        self._served = [0.0] * lanes
        self._rates = [0.0] * lanes
        self._active = 0
        self._now = 0.0
        self._next_time = math.inf
        self._next_lane = 0
        self._stale = False  # whether rates and the next finish must be recomputed

    def start(self, now: float, flow: int, size: float) -> None:
        """Start a flow of `size` bytes."""
        if now != self._now:
            self._advance(now)
        lane = self._lane_of[flow]
        heappush(self._flows[lane], (self._served[lane] + size, flow))
        self._active += 1
        self._stale = True

    def next_time(self) -> float:
        """When the next flow finishes; infinity if none is active."""
        if self._stale:
            self._share()
        return self._next_time

    def finish(self) -> list[int]:
        """Move on to `next_time` and return the flows that finish together then."""
        self._advance(self.next_time())
        lane = self._next_lane
        flows = self._flows[lane]
        # Set, not accumulated: a wait below the clock's resolution would be lost.
        mark = self._served[lane] = flows[0][0]
        finished = []
        while flows and flows[0][0] <= mark:
            finished.append(heappop(flows)[1])
        if not flows:
            self._served[lane] = 0.0  # keeps the numbers small and precise
        self._active -= len(finished)
        self._stale = True
        return finished

    def _advance(self, now: float) -> None:
        if self._stale:
            self._share()
        elapsed = now - self._now
        # Unlimited flows finish as they start: avoid infinity times zero.
        if self._active and elapsed > 0:
            for lane, rate in enumerate(self._rates):
                self._served[lane] += rate * elapsed
        self._now = now

    def _share(self) -> None:
        """Compute rates by water-filling from the smallest cap up, and the next finish."""
        left, waiting = self._capacity, self._active
        rates, served = self._rates, self._served
        soonest = math.inf
        for lane, flows in enumerate(self._flows):
            number = len(flows)
            if not number:
                rates[lane] = 0.0
                continue
            share, cap = left / waiting, self._caps[lane]
            rate = cap if cap < share else share
            left -= rate * number
            waiting -= number
            rates[lane] = rate
            wait = (flows[0][0] - served[lane]) / rate
            if wait < soonest:
                soonest, self._next_lane = wait, lane
        self._next_time = self._now + soonest if soonest > 0 else self._now
        self._stale = False


class ServerLinks:
    """The server's links: one per direction, or one for both if half duplex.

    Worker i's push is flow i, its pull is flow num_workers + i.
    """

    def __init__(
        self, network: Network, num_workers: int, bytes_up: float, bytes_down: float
    ) -> None:
        for name, size in (("bytes_up", bytes_up), ("bytes_down", bytes_down)):
            if not 0 <= size < math.inf:
                raise ConfigError(f"{name} should be a finite number, 0 or more, but is {size!r}.")
        self._num_workers = num_workers
        self._bytes_up, self._bytes_down = bytes_up, bytes_down
        ups, downs = network.worker_links(num_workers)
        pushes = dict(enumerate(ups))
        pulls = dict(enumerate(downs, start=num_workers))
        if network.half_duplex:
            self._up = self._down = FairLink(network.server_up, pushes | pulls)
        else:
            self._up = FairLink(network.server_up, pushes)
            self._down = FairLink(network.server_down, pulls)

    def push(self, now: float, worker: int, size: float | None = None) -> None:
        """Start sending the worker's update, or a message of `size` bytes, to the server."""
        self._up.start(now, worker, self._bytes_up if size is None else size)

    def pull(self, now: float, worker: int, size: float | None = None) -> None:
        """Start sending the model, or a message of `size` bytes, to the worker."""
        size = self._bytes_down if size is None else size
        self._down.start(now, self._num_workers + worker, size)

    def next_time(self) -> float:
        """When the next message has left completely; infinity if none is under way."""
        return self._next().next_time()

    def finish(self) -> list[int]:
        """Move on to `next_time` and return the flows that finish together then."""
        return self._next().finish()

    def _next(self) -> FairLink:
        up, down = self._up, self._down
        return up if up is down or up.next_time() <= down.next_time() else down
