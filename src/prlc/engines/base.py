"""What every engine offers, and where it runs.

An `Engine` runs a job one step at a time. A `Runtime` is where that happens: in this process, or in
several that torchrun started, of which one leads and the others assist. Training, API and command
line know engines only through these two classes and the registry in `prlc.engines`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor, nn

from prlc.engines.job import Job
from prlc.engines.schema import Form, Like
from prlc.errors import ConfigError
from prlc.methods import Asynchronous, Lazy, Mask, Scheduled
from prlc.network.clock import Arrival
from prlc.network.timeline import Timeline
from prlc.network.traffic import Counts

if TYPE_CHECKING:
    from prlc.engines.processes.cluster import Cluster
    from prlc.engines.simulator.execution import Execution

Event = tuple[int, str, float, float]
"""Something that a worker did: step, what, start, end (Unix time)."""


class StepReport(NamedTuple):
    """What happened in one step (for ASGD: in one arrival per worker)."""

    loss: float
    """The mean loss of the computed batches."""
    computes: Mask
    pushes: Counts
    """How often each worker pushed; a mask if at most once."""
    pulls: Counts
    seconds: float | None = None
    """The simulated time, if the engine itself follows the clock (asynchronous methods)."""
    staleness: float | None = None


class Engine(ABC):
    """Runs a job one step at a time."""

    #: Whether workers compute in parallel, so that wall-clock time means something.
    measures_time: ClassVar[bool] = False
    #: How the simulator computes. It decides rounding, so a resumed run must repeat it.
    execution: Execution | None = None
    #: Every process's events, if recorded; known after `finish`.
    events: Sequence[Sequence[Event]] | None = None

    def __init__(self, job: Job, arrivals: Iterator[Arrival] | None = None) -> None:
        self.job = job
        self.steps_done = 0
        self.traffic = job.traffic()
        self.sizes = job.sizes()
        self._arrivals = arrivals
        if isinstance(job.method, Scheduled):
            self.timetable = job.timetable()

    def begin(self) -> None:  # noqa: B027 (most engines are ready when constructed)
        """Prepare the first step, after the state is loaded."""

    def step(self) -> StepReport:
        """Run the next step. Raises DivergedError before a non-finite update reaches the server."""
        method, step = self.job.method, self.steps_done
        if isinstance(method, Scheduled):
            report = self._scheduled(method, step)
        elif isinstance(method, Lazy):
            report = self._lazy(method, step)
        elif isinstance(method, Asynchronous):
            report = self._asynchronous(method, step)
        else:
            raise TypeError(f"{type(method).__name__} belongs to no family of methods")
        if isinstance(method, Scheduled) and not method.trivial:
            turn = self.timetable[step]
            push, down = self.sizes.pushed(turn), self.sizes.pulls(turn)
        else:
            push, down = self.sizes.push, report.pulls * self.sizes.pull
        self.traffic.count(report.pushes, report.pulls, report.pushes * push, down)
        self.steps_done += 1
        return report

    def finish(self) -> None:
        """Wait for messages in flight after the last step; they count as traffic too."""
        late = self._drain()
        none = np.zeros_like(late)
        self.traffic.count(late, none, late * self.sizes.push, none)

    def _drain(self) -> Counts:
        """Wait for messages in flight; returns how many pushes of each worker came too late."""
        return np.zeros(self.job.num_workers, np.int64)

    def next_arrival(self) -> Arrival:
        """The next update to reach the server (asynchronous methods)."""
        if self._arrivals is None:
            raise ConfigError(
                f"{self.job.method.label} applies updates in their order of arrival, "
                "so its engine needs the arrivals of a network clock."
            )
        return next(self._arrivals)

    @abstractmethod
    def _scheduled(self, method: Scheduled, step: int) -> StepReport: ...

    @abstractmethod
    def _lazy(self, method: Lazy, step: int) -> StepReport: ...

    @abstractmethod
    def _asynchronous(self, method: Asynchronous, step: int) -> StepReport: ...

    @abstractmethod
    def copy_global_model(self, target: nn.Module) -> None:
        """Copy the server's model into `target`."""

    def details(self) -> dict[str, Any]:
        """The engine's own entries of a run's summary."""
        return {}

    @property
    def can_save(self) -> bool:
        """Whether `state` is available after this step."""
        return True

    def state(self) -> dict[str, Any]:
        """Everything needed to continue, as plain containers of tensors and numbers."""
        return {
            "steps_done": self.steps_done,
            "traffic": self.traffic.state(),
            "engine": self._own_state(),
        }

    def state_form(self) -> Form:
        """The form of a state that this engine, still at its start, can load."""
        return Like(self.state())

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.steps_done = state["steps_done"]
        self.traffic.load_state(state["traffic"])
        if isinstance(self.job.method, Scheduled):
            self.sizes.replay(self.timetable, self.steps_done)
        self._load_own_state(state["engine"])

    @abstractmethod
    def _own_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_own_state(self, state: dict[str, Any]) -> None: ...


def asynchronous_report(
    losses: Sequence[float], arrivals: Sequence[Arrival], pulling: Sequence[int], num_workers: int
) -> StepReport:
    """The report of an asynchronous step, from its arrivals and the workers that pulled."""
    pushes, pulls = (
        np.bincount(np.array(workers, np.int64), minlength=num_workers)
        for workers in ([arrival.worker for arrival in arrivals], pulling)
    )
    staleness = float(np.mean([arrival.staleness for arrival in arrivals]))
    seconds = arrivals[-1].seconds
    return StepReport(mean_loss(losses), pushes > 0, pushes, pulls, seconds, staleness)


def mean_loss(losses: Sequence[float]) -> float:
    """The mean of the known losses; the loss of an update that was left out may be unknown."""
    known = [loss for loss in losses if math.isfinite(loss)]
    with np.errstate(over="ignore"):  # a model whose losses are that high ends in the next step
        return float(np.mean(known)) if known else math.nan


class Cadence(NamedTuple):
    """How long a run is, and how often it is evaluated and saved."""

    steps: int
    eval_every: int
    checkpoint_every: int

    def evaluates(self, done: int) -> bool:
        """Whether the model is evaluated after `done` steps."""
        return done % self.eval_every == 0 or done == self.steps

    def saves(self, done: int) -> bool:
        """Whether a checkpoint is written after `done` steps."""
        return done % self.checkpoint_every == 0 or done == self.steps


class Assignment(NamedTuple):
    """What to run: a job, from the start or from a checkpoint."""

    job: Job
    timeline: Timeline
    cadence: Cadence
    saved: Mapping[str, Any] | None = None
    """A checkpoint."""

    def arrivals(self) -> Iterator[Arrival] | None:
        """The clock's remaining arrivals (asynchronous methods)."""
        return self.timeline.arrivals(self.saved["engine"]["steps_done"] if self.saved else 0)


class Outcome(NamedTuple):
    """The result of a run, as plain containers of tensors and numbers."""

    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    model: dict[str, Tensor]
    """A state_dict."""


class Runtime(ABC):
    """Where a run takes place. The defaults suit a single process, which always leads.

    A run calls, in this order: `device`; `connect`; then either `assist`, or (it leads)
    `announce`, `engine` and `share`.
    """

    #: Whether several processes run the same command, started and restarted by torchrun. A run then
    #: needs a folder, from which the repeated command continues.
    multi_process: ClassVar[bool] = False

    def __init__(self, *, execution: Execution | None, cluster: Cluster) -> None:
        """Takes the settings of all engines; each uses its own."""
        self._execution, self._cluster = execution, cluster

    def describe(self) -> dict[str, Any]:
        """The engine's own settings that decide the result, for a run's config.json."""
        return {}

    def device(self, name: str) -> str:
        """The device that this process computes on, given the requested one."""
        return name

    def connect(self, job: Job, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Join the other processes of the run, if any; all must have the same settings."""

    @property
    def leads(self) -> bool:
        """Whether this process steps, evaluates and writes; otherwise it assists."""
        return True

    def announce(self, *, finished: bool, saves: bool = False) -> None:  # noqa: B027
        """Tell the others whether the run is already finished, and whether it saves checkpoints."""

    @abstractmethod
    def engine(self, assignment: Assignment) -> Engine:
        """A new engine for the assignment; the caller loads the checkpoint, if any."""

    def share(self, outcome: Outcome) -> None:  # noqa: B027
        """Send the others the outcome, and disconnect."""

    def assist(self, assignment: Assignment) -> Outcome:
        """Do this process's part of a run that another leads; returns the outcome."""
        raise NotImplementedError(f"{type(self).__name__} has no process to assist.")
