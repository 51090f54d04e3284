"""How processes are arranged, and the settings on which all of them agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prlc.engines.roles.lazy import LazySettings
from prlc.engines.roles.scheduled import RoleSettings
from prlc.errors import ConfigError
from prlc.methods import Lazy, Method, Scheduled
from prlc.optim.optimizers import RuleSettings
from prlc.text import file_digest, is_number

LAYOUTS = ("server", "sharded")
ON_BAD_UPDATE = ("stop", "skip")
ON_LONG_UPDATE = ("warn", "stop", "skip")
_LARGEST_WINDOW = 10_000
_LONGEST_TIMEOUT = 30 * 86_400.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """How a job runs in real processes."""

    layout: str = "server"
    window: int = 4
    """How many pushes of a worker may be in flight; it keeps a buffer for each."""
    peer_timeout: float = 600.0
    """Seconds of silence after which a process counts as hung."""
    on_bad_update: str = "stop"
    """What to do with an update that is not finite or misshapen: stop, or skip it."""
    on_long_update: str = "warn"
    """What to do with an update that is far longer than the other workers': warn, stop, or skip."""
    length_bound: float = 100.0
    """How many times as long as the longest of the others' an update may be."""
    record_timeline: bool = False
    emulate_compute: bool = False
    """Slow every step down to the simulated network's compute time."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("layout", self.layout, LAYOUTS),
            ("answer to a bad update", self.on_bad_update, ON_BAD_UPDATE),
            ("answer to a long update", self.on_long_update, ON_LONG_UPDATE),
        ):
            if value not in known:
                raise ConfigError(f"There is no {name} {value!r}. Choose: {', '.join(known)}.")
        if type(self.window) is not int or self.window < 1:
            raise ConfigError(
                f"The window must be a whole number of pushes, 1 or more, but is {self.window!r}."
            )
        if self.window > _LARGEST_WINDOW:
            raise ConfigError(
                f"The window must be {_LARGEST_WINDOW:,} pushes at most, each of which takes "
                f"memory, but is {self.window:,}."
            )
        if not (is_number(self.length_bound) and self.length_bound >= 1):
            raise ConfigError(
                "The bound on an update's length must be a number, 1 or more, but is "
                f"{self.length_bound!r}."
            )
        if not 0 < self.peer_timeout < math.inf:
            raise ConfigError(
                "The time after which a process counts as hung must be a positive number of "
                f"seconds but is {self.peer_timeout!r}."
            )
        if self.peer_timeout > _LONGEST_TIMEOUT:
            raise ConfigError(
                "The time after which a process counts as hung must be a month at most but is "
                f"{self.peer_timeout:.3g} s."
            )

    def as_json(self) -> dict[str, Any]:
        """The settings that decide the result."""
        bound = {} if self.on_long_update == "warn" else {"length_bound": self.length_bound}
        answers = {"on_bad_update": self.on_bad_update, "on_long_update": self.on_long_update}
        return {"layout": self.layout, **answers, **bound}


@dataclass(frozen=True)
class Layout:
    """Which ranks compute and which hold the global model.

    server    rank 0 holds all of it, the other ranks are workers
    sharded   every rank is a worker and holds one shard

    Of several `ranks_per_worker`, neighbours, the first is the worker to all others.
    """

    name: str
    num_ranks: int
    ranks_per_worker: int = 1

    def __post_init__(self) -> None:
        if type(self.ranks_per_worker) is not int or self.ranks_per_worker < 1:
            raise ConfigError(
                "The ranks of a worker must be a whole number, 1 or more, but are "
                f"{self.ranks_per_worker!r}."
            )
        if self.ranks_per_worker > 1 and self.name == "server":
            raise ConfigError(
                "Workers of several ranks need the sharded layout, in which every worker also "
                "holds a part of the global model: leave out layout='server'."
            )
        if self.num_ranks % self.ranks_per_worker:
            raise ConfigError(
                f"{self.num_ranks} processes cannot be workers of {self.ranks_per_worker} ranks "
                "each. Start a multiple of that: torchrun --nproc-per-node "
                f"{self.ranks_per_worker * 2} ..."
            )
        least = 2 if self.name == "server" else 1
        if self.num_ranks < least:
            raise ConfigError(
                "The server layout needs at least two processes, a server and a worker, but there "
                "is one. Start more: torchrun --nproc-per-node 5 ..."
            )

    @property
    def servers(self) -> list[int]:
        """The rank that holds each shard of the global model."""
        return [0] if self.name == "server" else self.workers

    @property
    def workers(self) -> list[int]:
        """The rank of each worker, or the first of its ranks."""
        first = 1 if self.name == "server" else 0
        return list(range(first, self.num_ranks, self.ranks_per_worker))

    def worker_of(self, rank: int) -> int:
        """The worker that a rank belongs to; -1 for the server."""
        return (rank - self.workers[0]) // self.ranks_per_worker

    def ranks_of(self, worker: int) -> list[int]:
        """All ranks of a worker."""
        first = self.workers[worker]
        return list(range(first, first + self.ranks_per_worker))

    def names(self) -> list[str]:
        """What error messages call each rank."""
        names = [f"rank {rank} (worker {self.worker_of(rank)})" for rank in range(self.num_ranks)]
        if self.name == "server":
            names[0] = "rank 0 (the server)"
        return names


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, the same on all ranks."""

    method: Method
    num_workers: int
    seed: int = 0
    steps: int | None = None
    """How many steps; None: until the workers say goodbye."""
    window: int = Cluster.window
    on_bad_update: str = Cluster.on_bad_update
    on_long_update: str = Cluster.on_long_update
    length_bound: float = Cluster.length_bound
    lr: Callable[[int], float] | None = None
    """The learning rate of a step; None: the last one that a worker sent."""
    save_every: int = 0
    """Steps between checkpoints; 0: none."""
    weights: Sequence[float] | None = None
    """How much each worker counts, if the method weighs them by samples."""
    rule: RuleSettings = field(default_factory=RuleSettings)
    """What the server does with a mean update."""
    collect_every: int = 0
    """Steps between collections of the whole global model on rank 0; 0: never."""

    def role(self) -> RoleSettings:
        """The settings of a scheduled method's roles."""
        assert isinstance(self.method, Scheduled)
        return RoleSettings(
            self.method, self.num_workers, self.seed, self.steps, self.weights, self.rule
        )

    def lazy(self) -> LazySettings:
        """The settings of a lazy method's roles."""
        assert isinstance(self.method, Lazy)
        return LazySettings(self.method, self.num_workers, self.seed, self.rule)

    def saves(self, done: int) -> bool:
        """Whether a checkpoint is made after `done` steps; never at the end of a run."""
        if not self.save_every or done == self.steps:
            return False
        if self.steps is not None or not isinstance(self.method, Scheduled):
            return done % self.save_every == 0
        # Only a push tells the server whether the workers go on, so wait for the next one.
        period = self.method.every
        return done % period == 0 and done // self.save_every > (done - period) // self.save_every

    def collects(self, done: int) -> bool:
        """Whether rank 0 collects the whole global model after `done` steps."""
        return bool(self.collect_every) and (done % self.collect_every == 0 or done == self.steps)

    def describe(self) -> str:
        """What must be the same on all ranks, for error messages."""
        digest = file_digest(type(self.method))
        method = str(self.method) + (f" (file {digest})" if digest else "")
        names = ("seed", "steps", "on_bad_update", "on_long_update", "save_every", "collect_every")
        settings = {"method": method} | {name: getattr(self, name) for name in names}
        settings["optimizer at"] = "server" if self.rule.takes_gradients else "workers"
        return ", ".join(f"{name} {value}" for name, value in settings.items())
