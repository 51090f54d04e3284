"""Transfers that share a link fairly.

Transfers are fluids: at every moment each flow has its max-min fair share of the link, that is an
equal share, unless the worker's own link (the flow's cap) is slower; what a capped flow leaves
over goes to the others. Flows with the same cap always have the same rate. So one number per
distinct cap, the bytes that any flow of that cap has been served so far, stands for all of them,
and a flow is finished when that number reaches a mark fixed at its start. A start or a finish
costs O(log flows + distinct caps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heappop, heappush

from prlc.errors import ConfigError
from prlc.network import Network

__all__ = ["FairLink", "ServerLinks"]


class FairLink:
    """One link of `capacity` bytes/s. `caps` gives the largest rate of each flow, by its number.

    The caller moves time forward: it asks for `next_time`, then either starts flows no later than
    that or calls `finish`.
    """

    def __init__(self, capacity: float, caps: Mapping[int, float]) -> None:
        self._capacity = capacity
        self._caps = sorted(set(caps.values()))
        self._lane_of = {flow: self._caps.index(cap) for flow, cap in caps.items()}
        lanes = len(self._caps)
        # For each distinct cap, a lane: the flows under way as (mark, flow), the bytes served to
        # any one of them, and their rate.
        self._flows: list[list[tuple[float, int]]] = [[] for _ in range(lanes)]
        self._served = [0.0] * lanes
        self._rates = [0.0] * lanes
        self._active = 0
        self._now = 0.0
        self._next_time = math.inf
        self._next_lane = 0
        self._stale = False  # do rates and the next finish wait to be worked out?

    def start(self, now: float, flow: int, size: float) -> None:
        """Start a flow of `size` bytes."""
        if now != self._now:
            self._advance(now)
        lane = self._lane_of[flow]
        heappush(self._flows[lane], (self._served[lane] + size, flow))
        self._active += 1
        self._stale = True

    def next_time(self) -> float:
        """When the next flow finishes; infinity if none is under way."""
        if self._stale:
            self._share()
        return self._next_time

    def finish(self) -> list[int]:
        """Move on to `next_time` and return the flows that finish together then."""
        self._advance(self.next_time())
        lane = self._next_lane
        flows = self._flows[lane]
        # Set, not summed up: a wait too short for the clock to show would be lost.
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
        # Unlimited flows finish the moment they start: never let infinity meet a zero.
        if self._active and elapsed > 0:
            for lane, rate in enumerate(self._rates):
                self._served[lane] += rate * elapsed
        self._now = now

    def _share(self) -> None:
        """Water-filling from the smallest cap up, and with the rates the next finish."""
        left, waiting = self._capacity, self._active
        soonest = math.inf
        for lane, flows in enumerate(self._flows):
            if not flows:
                self._rates[lane] = 0.0
                continue
            share, cap = left / waiting, self._caps[lane]
            rate = cap if cap < share else share
            left -= rate * len(flows)
            waiting -= len(flows)
            self._rates[lane] = rate
            wait = (flows[0][0] - self._served[lane]) / rate
            if wait < soonest:
                soonest, self._next_lane = wait, lane
        self._next_time = self._now + max(soonest, 0.0)
        self._stale = False


class ServerLinks:
    """The server's link, one for each direction or one for both.

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

    def push(self, now: float, worker: int) -> None:
        """Start to send the worker's message to the server."""
        self._up.start(now, worker, self._bytes_up)

    def pull(self, now: float, worker: int) -> None:
        """Start to send the model to the worker."""
        self._down.start(now, self._num_workers + worker, self._bytes_down)

    def next_time(self) -> float:
        """When the last byte of some message leaves next; infinity if none is under way."""
        return min(self._up.next_time(), self._down.next_time())

    def finish(self) -> list[int]:
        """Move on to `next_time` and return the flows that finish together then."""
        link = self._up if self._up.next_time() <= self._down.next_time() else self._down
        return link.finish()
