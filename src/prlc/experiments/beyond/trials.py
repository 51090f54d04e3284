"""One run, its times on every clock, and all that a study needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from prlc.data import Dataset, parse_partition
from prlc.engines import Execution
from prlc.experiments.beyond.plans import Planning
from prlc.experiments.beyond.settings import BASELINE, Problem, Row, beyond
from prlc.experiments.curves import final_loss, first_reached
from prlc.experiments.pool import OnFraction, Pool
from prlc.experiments.specs import (
    CLOCK_MS,
    Workspace,
    finish,
    load_data,
    read_times,
    write_times,
)
from prlc.experiments.sweep import OnWork, Tuned, Work
from prlc.methods import parse_method
from prlc.models import build, cross_entropy
from prlc.network import Network
from prlc.optim.schedules import Cosine
from prlc.planner import infinitely_fast
from prlc.report import Run
from prlc.runs.config import Config
from prlc.runs.jobs import make_job

__all__ = ["Timing", "Trial", "choose", "make_trials", "raced", "retimed", "rows_of"]

UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Trial:
    """Everything that decides one run."""

    problem: Problem
    row: Row
    lr: float
    seed: int
    clock: str = ""
    """Only if the result depends on it."""
    tuning: bool = False

    @property
    def name(self) -> str:
        """Its folder in the workspace."""
        kind = "tuning" if self.tuning else "runs"
        run = f"{self.row.slug}-lr-{self.lr:g}-seed-{self.seed}"
        return f"{kind}/{self.problem.name}/{run}{self.clock and f'-{self.clock}'}"

    @property
    def steps(self) -> int:
        if self.tuning:
            return self.problem.tuning_steps
        return self.row.steps_on(self.problem)

    @property
    def cost(self) -> float:
        return self.steps * self.problem.step_ms / 1e3

    @property
    def evaluated(self) -> list[int]:
        """The steps at which the loss is known."""
        return [*range(0, self.steps, self._eval_every), self.steps]

    @property
    def _eval_every(self) -> int:
        if self.tuning:
            return self.steps  # its last loss decides
        return max(1, self.steps // self.problem.evaluations)

    def settings(self, device: str) -> dict[str, Any]:
        """The keyword arguments of `prlc.train`."""
        problem = self.problem
        optimizer = self.row.optimizer or problem.optimizer
        return {
            "method": parse_method(self.row.method),
            "workers": problem.workers,
            "batch_size": problem.batch_size,
            "steps": self.steps,
            "schedule": Cosine(self.lr),
            "optimizer": optimizer,
            "optimizer_at": "workers" if optimizer == "sgd" else self.row.optimizer_at,
            "partition": parse_partition(problem.partition),
            "network": beyond().networks[self.clock] if self.clock else None,
            "seed": self.seed,
            "execution": Execution(problem.chunk, threads=1) if device == "cpu" else None,
            "device": device,
            "eval_every": self._eval_every,
            "eval_samples": problem.eval_samples or None,
        }

    def model(self, data: Dataset) -> nn.Module:
        return build(self.problem.model, data.sample_shape, data.num_classes, self.seed)

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        data = load_data(self.problem, workspace.data_dir)
        settings = self.settings(workspace.device)
        finish(workspace.out / self.name, self.model(data), data, settings, on_fraction)

    def load(self, workspace: Workspace) -> Run:
        """The run on disk; one that diverged has no summary."""
        return Run.read(workspace.out / self.name)


@dataclass(frozen=True)
class Timing:
    """When the evaluated steps of a method are over on a clock; seed 0's stand for all seeds."""

    trial: Trial
    clock: str
    unlimited: bool = False

    @property
    def name(self) -> str:
        """Its file in the workspace; the learning rate does not matter."""
        fast = f"-{UNLIMITED}" if self.unlimited else ""
        return f"clocks/{self.trial.problem.name}/{self.trial.row.slug}-{self.clock}{fast}.json"

    @property
    def cost(self) -> float:
        return self.trial.steps * CLOCK_MS / 1e3

    @property
    def network(self) -> Network:
        network = beyond().networks[self.clock]
        return infinitely_fast(network) if self.unlimited else network

    def make(self, workspace: Workspace, on_fraction: OnFraction | None = None) -> None:
        del on_fraction  # it takes seconds
        file, steps = workspace.out / self.name, self.trial.evaluated
        if file.is_file() and list(read_times(file)) == steps:
            return
        data = load_data(self.trial.problem, workspace.data_dir)
        config = Config(**self.trial.settings("cpu"))
        job = make_job(self.trial.model(data), cross_entropy, data, config)
        write_times(file, job, self.network, steps)

    def load(self, workspace: Workspace) -> dict[int, float]:
        """Simulated seconds by step."""
        return read_times(workspace.out / self.name)


# -- what a study needs ----------------------------------------------------------------------------


def make_trials(
    problems: Mapping[Problem, int], workspace: Workspace, pool: Pool, on_work: OnWork | None
) -> list[Tuned]:
    """Tune every method and make the plans, then make the runs; returns the step sizes.

    The same grid, the same number of short runs and the same criterion for every method.
    """
    ordered = sorted(problems, key=lambda problem: -problem.step_ms)
    each = [(problem, row) for problem in ordered for row in beyond().rows_of(problem)]
    tuning = [trial for problem, row in each for trial in tuning_of(problem, row)]
    planned = [Planning(problem) for problem in ordered if problem.plan_trials]
    expected = [t for p, row in each for t in trials_of(p, row, problems[p])]
    work = Work(workspace, pool, on_work, expected=sum(trial.cost for trial in expected))
    work.run([*planned, *tuning])
    tuned = [choose(problem, row, workspace) for problem, row in each]
    work.expected = 0.0

    def race(rows: Mapping[Problem, list[Row]]) -> None:
        each = [(p, row) for p in ordered for row in rows[p]]
        runs = [trial for p, row in each for trial in trials_of(p, row, problems[p])]
        work.run([*runs, *(timing for p, row in each for timing in timings_of(p, row))])

    race({p: rows_of(p, tuned, workspace) for p in ordered})
    race({p: raced(p, problems[p], tuned, workspace) for p in ordered})
    return tuned


def retimed(run: Run, seconds: Mapping[int, float]) -> Run:
    """The run with the times of a clock, by step."""
    times = run.metrics["step"].map(seconds)
    return replace(run, metrics=run.metrics.assign(simulated_seconds=times))


def rows_of(problem: Problem, tuned: Sequence[Tuned], workspace: Workspace) -> list[Row]:
    """The rows of a problem's table, with what tuning found, and its plans."""
    found = {each.method: each for each in tuned if each.problem == problem.name}
    planned = [Planning(problem).load(workspace)] if problem.plan_trials else []
    return [*(_settled(problem, row, found) for row in beyond().rows_of(problem)), *planned]


def raced(problem: Problem, seeds: int, tuned: Sequence[Tuned], workspace: Workspace) -> list[Row]:
    """The same after their runs: who missed NSGD's loss in as many steps gets all that it may."""
    first, *others = rows_of(problem, tuned, workspace)
    targets = targets_of(problem, first, seeds, workspace)

    def there(trial: Trial) -> bool:
        run = trial.load(workspace)
        return first_reached(run, "step", targets[trial.seed], problem.measure) < math.inf

    def settled(row: Row) -> bool:
        return all(there(trial) for trial in trials_of(problem, row, seeds))

    return [first, *(row if settled(row) else row.lengthened(problem) for row in others)]


def targets_of(problem: Problem, nsgd: Row, seeds: int, workspace: Workspace) -> list[float]:
    """The loss to get to, for each seed."""
    runs = [trial.load(workspace) for trial in trials_of(problem, nsgd, seeds)]
    return [(1 + problem.close) * final_loss(run, problem.measure) for run in runs]


def _settled(problem: Problem, row: Row, tuned: Mapping[str, Tuned]) -> Row:
    """Its step size; and NSGD's length, if a run as long ends at NSGD's loss, too."""
    own, nsgd = tuned[row.method], tuned[BASELINE]
    enough = problem.tuning_steps == problem.steps and own.loss <= nsgd.loss
    longer = 1.0 if enough else beyond().limits.steps
    return replace(row, lr=own.lr, length=row.length or longer)


def tuning_of(problem: Problem, row: Row) -> list[Trial]:
    clock = beyond().clocks_of(row)[0] if row.arrives else ""
    return [
        Trial(problem, row, lr, beyond().tuning_seed, clock, tuning=True)
        for lr in row.step_sizes(problem)
    ]


def trials_of(problem: Problem, row: Row, seeds: int) -> list[Trial]:
    clocks = beyond().clocks_of(row) if row.arrives else ("",)
    return [Trial(problem, row, row.lr, seed, clock) for seed in range(seeds) for clock in clocks]


def timings_of(problem: Problem, row: Row) -> list[Timing]:
    """None for a method whose runs are timed themselves."""
    if row.arrives:
        return []
    trial = Trial(problem, row, problem.grid[0], seed=0)
    timings = [Timing(trial, clock) for clock in beyond().clocks_of(row)]
    if row.method == BASELINE:
        timings += [Timing(trial, clock, unlimited=True) for clock in beyond().clocks_of(row)]
    return timings


def choose(problem: Problem, row: Row, workspace: Workspace) -> Tuned:
    """The step size with the lowest final loss."""
    losses = (
        (trial.lr, final_loss(trial.load(workspace), problem.measure))
        for trial in tuning_of(problem, row)
    )
    return Tuned.best_of(problem.name, row.method, losses)
