"""The curves of finished runs, and the numbers read off them, one per seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prlc.experiments.settings import Figure, Problem, paper
from prlc.experiments.specs import Replay, RunSpec, Workspace
from prlc.methods import Asynchronous, parse_method
from prlc.report import Run, Series

__all__ = [
    "ASGD",
    "BARRIER",
    "RUN_AHEAD",
    "TIMED",
    "Curves",
    "Ratio",
    "final_loss",
    "final_losses",
    "first_reached",
    "last_values",
    "load_curves",
    "mean_loss",
    "ratio",
]

#: What is timed on each clock: ASGD, and the other method with and without run-ahead.
TIMED = (ASGD, RUN_AHEAD, BARRIER) = ("ASGD", "run-ahead", "barrier")


@dataclass(frozen=True)
class Curves:
    """All curves on one problem, at the paper's step size or at each method's tuned one."""

    problem: Problem
    tuned: bool
    step_sizes: Mapping[str, float]
    """By method."""
    series: Mapping[str, Series]
    """By method, in the figures' spelling."""
    timed: Mapping[tuple[str, str], Series]
    """By clock and one of `TIMED`."""

    @property
    def setting(self) -> str:
        return f"{self.problem.title}, {'tuned' if self.tuned else f'lr {paper().lr:g}'}"


def load_curves(
    figures: Sequence[Figure],
    problem: Problem,
    seeds: int,
    step_sizes: Mapping[str, float],
    workspace: Workspace,
    *,
    tuned: bool,
) -> Curves:
    """Read the finished runs."""
    series, timed = {}, {}
    for method, lr in step_sizes.items():
        specs = [RunSpec(problem, method, lr, seed) for seed in range(seeds)]
        series[method] = _series([spec.load(workspace) for spec in specs])
        for clock in {clock: None for f in figures if method in f.methods for clock in f.clocks}:
            if isinstance(parse_method(method), Asynchronous):
                runs = [replace(spec, clock=clock).load(workspace) for spec in specs]
                timed[clock, ASGD] = _series(runs)
                continue
            for waiting in (RUN_AHEAD, BARRIER):
                runs = [
                    _retimed(Replay(spec, clock, run_ahead=waiting == RUN_AHEAD), workspace)
                    for spec in specs
                ]
                timed[clock, waiting] = _series(runs, f", {waiting}")
    return Curves(problem, tuned, step_sizes, series, timed)


def _series(runs: Sequence[Run], suffix: str = "") -> Series:
    return Series(runs[0].label + suffix, tuple(runs))


def _retimed(replay: Replay, workspace: Workspace) -> Run:
    """The run with the times of the replay's clock."""
    run = replay.run.load(workspace)
    if replay.is_redundant:
        return run
    seconds = run.metrics["step"].map(replay.load(workspace))
    return replace(run, metrics=run.metrics.assign(simulated_seconds=seconds))


# -- Numbers read off curves -----------------------------------------------------------------------


def final_loss(run: Run, measure: str = "train_loss") -> float:
    """The loss at the end; infinite if the run diverged."""
    loss = float(run.metrics[measure].iloc[-1])
    return loss if run.finished and math.isfinite(loss) else math.inf


def final_losses(series: Series) -> list[float]:
    """The final training loss of each seed; infinite where it diverged."""
    return [final_loss(run) for run in series.runs]


def last_values(series: Series, column: str) -> list[float]:
    """What each seed's column ends with."""
    return [float(run.metrics[column].iloc[-1]) for run in series.runs]


def mean_loss(run: Run, first: float, last: float) -> float:
    """The mean training loss of the evaluations after epoch `first`, up to epoch `last`."""
    epochs = run.metrics["epoch"]
    chosen = run.metrics.loc[(epochs > first + 1e-9) & (epochs <= last + 1e-9), "train_loss"]
    return float(chosen.mean())


def first_reached(run: Run, x: str, loss: float, measure: str = "train_loss") -> float:
    """The value of `x` where the loss first is `loss` or less; infinite if never.

    Both are interpolated linearly between evaluations.
    """
    losses, xs = run.metrics[measure].tolist(), run.column(x).tolist()
    for k, (now, at) in enumerate(zip(losses, xs, strict=True)):
        if now <= loss:
            if k == 0:
                return float(at)
            part = (losses[k - 1] - loss) / (losses[k - 1] - now)
            return float(xs[k - 1] + part * (at - xs[k - 1]))
    return math.inf


@dataclass(frozen=True)
class Ratio:
    """One number per seed: one method's number over another's."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def __str__(self) -> str:
        """The mean, and the range if the seeds differ visibly."""
        mean, low, high = (f"{v:.2f}" for v in (self.mean, min(self.values), max(self.values)))
        return mean if low == high else f"{mean} ({low} to {high})"

    def numbers(self, name: str) -> dict[str, float]:
        """The mean and the range, for the record."""
        return {
            name: self.mean,
            f"{name}_low": min(self.values),
            f"{name}_high": max(self.values),
        }


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Seed by seed; None if a number is not finite or a denominator is not positive."""
    pairs = list(zip(above, below, strict=True))
    if not all(math.isfinite(a) and math.isfinite(b) and b > 0 for a, b in pairs):
        return None
    return Ratio(tuple(a / b for a, b in pairs))
