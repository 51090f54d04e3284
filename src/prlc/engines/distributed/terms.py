"""What all ranks agree on before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prlc.errors import ConfigError
from prlc.methods import Method, Scheduled

LAYOUTS = ("server", "sharded")
ON_BAD_UPDATE = ("stop", "skip")


@dataclass(frozen=True)
class Layout:
    """Who computes and who keeps the global model.

    server    rank 0 keeps all of it, the other ranks are workers
    sharded   every rank is a worker and keeps one shard
    """

    name: str
    num_ranks: int

    def __post_init__(self) -> None:
        least = 2 if self.name == "server" else 1
        if self.num_ranks < least:
            raise ConfigError(
                "The server layout needs at least two processes, a server and a worker, but there "
                "is one. Start more: torchrun --nproc-per-node 5 ..."
            )

    @property
    def owners(self) -> list[int]:
        """The rank of each shard of the global model."""
        return [0] if self.name == "server" else list(range(self.num_ranks))

    @property
    def workers(self) -> list[int]:
        """The rank of each worker."""
        return list(range(1 if self.name == "server" else 0, self.num_ranks))

    def names(self) -> list[str]:
        """What ranks are called in messages to people."""
        first = self.workers[0]
        names = [f"rank {rank} (worker {rank - first})" for rank in range(self.num_ranks)]
        if self.name == "server":
            names[0] = "rank 0 (the server)"
        return names


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """How a job runs in real processes."""

    layout: str = "server"
    window: int = 4
    """How many pushes of a worker may be under way; so many buffers it keeps."""
    peer_timeout: float = 600.0
    """Seconds of silence after which a process counts as hung."""
    on_bad_update: str = "stop"
    """What to do with an update that is not finite or misshapen: stop, or skip it."""
    record_timeline: bool = False
    emulate_compute: bool = False
    """Let every step take at least as long as the simulated network says of its workers."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("layout", self.layout, LAYOUTS),
            ("answer to a bad update", self.on_bad_update, ON_BAD_UPDATE),
        ):
            if value not in known:
                raise ConfigError(f"There is no {name} {value!r}. Choose: {', '.join(known)}.")
        if type(self.window) is not int or self.window < 1:
            raise ConfigError(
                f"The window must be a whole number of pushes, 1 or more, but is {self.window!r}."
            )
        if not 0 < self.peer_timeout < math.inf:
            raise ConfigError(
                "The time after which a process counts as hung must be a positive number of "
                f"seconds but is {self.peer_timeout!r}."
            )

    def as_json(self) -> dict[str, str]:
        """What decides the result."""
        return {"layout": self.layout, "on_bad_update": self.on_bad_update}


@dataclass(frozen=True)
class Terms:
    """How a run goes, the same on all ranks."""

    method: Method
    num_workers: int
    seed: int = 0
    steps: int | None = None
    """How many steps; None: until the workers say goodbye."""
    window: int = Cluster.window
    on_bad_update: str = Cluster.on_bad_update
    lr: Callable[[int], float] | None = None
    """The learning rate of a step; None: what the workers said last."""
    save_every: int = 0
    """Steps between checkpoints; 0: none are made."""
    show_every: int = 0
    """Steps after which rank 0 wants to see the whole global model, as at the end; 0: never."""

    def saves(self, done: int) -> bool:
        """Whether a checkpoint is made after so many steps; none is at the end of a run."""
        if not self.save_every or done == self.steps:
            return False
        if self.steps is not None or not isinstance(self.method, Scheduled):
            return done % self.save_every == 0
        # Only from a push the keeper learns whether the workers go on: the first from then on.
        period = self.method.period
        return done % period == 0 and done // self.save_every > (done - period) // self.save_every

    def shows(self, done: int) -> bool:
        """Whether rank 0 wants to see the whole global model after so many steps."""
        return bool(self.show_every) and (done % self.show_every == 0 or done == self.steps)

    def agreed(self) -> str:
        """What must be the same on all ranks, for people to read."""
        method = {"method": self.method.name, **self.method.options()}
        names = ("seed", "steps", "on_bad_update", "save_every", "show_every")
        settings = method | {name: getattr(self, name) for name in names}
        return ", ".join(f"{name} {value}" for name, value in settings.items())
