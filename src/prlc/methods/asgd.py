"""Asynchronous SGD (Downpour with one push and one fetch a step), also within a window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from prlc.errors import ConfigError
from prlc.methods.base import Asynchronous
from prlc.text import is_number


@dataclass(frozen=True)
class ASGD(Asynchronous):
    """The server adds each update on arrival and returns the new model to its worker.

    An update counts 1/P, so P arrivals weigh as much as one synchronous step at the same
    learning rate. With `staleness_aware`, an update that missed s others counts 1/(1+s)
    (Zhang et al. 2016): the same for workers of equal speed, less for stragglers.
    """

    staleness_aware: bool = False

    summary: ClassVar[str] = "push and pull when done; nobody waits"
    paper: ClassVar[str] = "Dean et al. 2012 (Downpour SGD); Zhang et al. 2016, arXiv:1511.05950"
    name: ClassVar[str] = "asgd"

    def __post_init__(self) -> None:
        if not isinstance(self.staleness_aware, bool):
            raise ConfigError(
                f"ASGD's staleness_aware must be true or false but is {self.staleness_aware!r}."
            )

    @property
    def label(self) -> str:
        return "ASGD, staleness-aware" if self.staleness_aware else "ASGD"

    def share(self, staleness: int, num_workers: int) -> float:
        return 1.0 / (1 + staleness) if self.staleness_aware else 1.0 / num_workers


@dataclass(frozen=True)
class SSP(Asynchronous):
    """ASGD whose worker waits while it is more than `window` steps ahead of the slowest.

    It then gets the model of the moment when it may go on. Without a limit (`inf`) this is ASGD;
    with 0 nobody begins a step before everybody has finished the one before.
    """

    window: float = 3

    summary: ClassVar[str] = "ASGD, at most `window` steps ahead of the slowest"
    paper: ClassVar[str] = "Ho et al. 2013 (stale synchronous parallel)"
    name: ClassVar[str] = "ssp"

    def __post_init__(self) -> None:
        s = self.window
        if not (is_number(s) and (s == math.inf or (s >= 0 and s == int(s)))):
            raise ConfigError(
                "SSP's window must be a whole number of steps, 0 or more, or inf for no limit, but "
                f"is {s!r}."
            )

    @property
    def label(self) -> str:
        return f"SSP s={self.window:g}"

    def share(self, staleness: int, num_workers: int) -> float:
        del staleness
        return 1.0 / num_workers


class Gate:
    """Who may begin a step: nobody more than `window` steps ahead of the slowest.

    A worker's step counts when its update has been applied, or is `announced`: it has arrived but
    must wait.
    """

    def __init__(self, window: float, num_workers: int) -> None:
        self._window = window
        self._counts = [0] * num_workers
        self._announced: set[int] = set()
        self._gone: set[int] = set()
        self.waiting: list[int] = []

    def applied(self, worker: int) -> list[int]:
        """Count a worker's step; returns who may go on now, in the order of the workers."""
        self._counts[worker] += 1
        self._announced.discard(worker)
        self.waiting.append(worker)
        return self._free()

    def announced(self, worker: int) -> list[int]:
        """Expect a worker's update to be applied; returns who may go on now."""
        self._announced.add(worker)
        return self._free()

    def left(self, worker: int) -> list[int]:
        """Wait no longer for a worker; returns who may go on now."""
        self._gone.add(worker)
        return self._free()

    def resumed(self) -> list[int]:
        """All workers ask whether they may go on; returns those who may."""
        self.waiting = list(range(len(self._counts)))
        return self._free()

    def _free(self) -> list[int]:
        free = sorted(self.waiting)
        if self._window < math.inf:
            counts = [n + (i in self._announced) for i, n in enumerate(self._counts)]
            slowest = min((n for i, n in enumerate(counts) if i not in self._gone), default=0)
            free = [i for i in free if self._counts[i] - slowest <= self._window]
        self.waiting = [i for i in self.waiting if i not in free]
        return free

    def state(self) -> dict[str, list[int]]:
        return {"counts": list(self._counts), "waiting": list(self.waiting)}

    def load_state(self, state: dict[str, list[int]]) -> None:
        self._counts, self.waiting = list(state["counts"]), list(state["waiting"])
