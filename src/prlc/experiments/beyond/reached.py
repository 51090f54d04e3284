"""What a method took to NSGD's loss, seed by seed; infinite where it did not get there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prlc.experiments.beyond.settings import BASELINE, Problem, Row, beyond
from prlc.experiments.beyond.trials import (
    Timing,
    Trial,
    raced,
    retimed,
    targets_of,
    timings_of,
    trials_of,
)
from prlc.experiments.curves import final_loss, first_reached
from prlc.experiments.specs import Workspace
from prlc.experiments.sweep import Tuned
from prlc.report import Run, Series

__all__ = ["Race", "Reached", "load_race", "mean", "record_row"]


@dataclass(frozen=True)
class Reached:
    """One method on one problem."""

    row: Row
    series: Series
    timed: Mapping[str, Series]
    """By clock: the same curves, with that clock's times."""
    losses: tuple[float, ...]
    """At the end."""
    steps: tuple[float, ...]
    """Until NSGD's loss, like all that follows."""
    pulls: tuple[float, ...]
    bytes: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]
    """By clock."""

    @property
    def arrived(self) -> bool:
        """Whether every seed got there."""
        return math.inf not in self.steps


@dataclass(frozen=True)
class Race:
    """All methods on one problem."""

    problem: Problem
    reached: Mapping[str, Reached]
    """By the name of the row."""
    fastest: Mapping[str, float]
    """By clock: NSGD's time to its own loss on an infinitely fast network."""

    @property
    def baseline(self) -> Reached:
        return self.reached[BASELINE]


def load_race(problem: Problem, seeds: int, tuned: Sequence[Tuned], workspace: Workspace) -> Race:
    """Read the finished runs."""
    rows = raced(problem, seeds, tuned, workspace)
    runs = {row: _runs(problem, row, seeds, workspace) for row in rows}
    first = next(row for row in rows if row.method == BASELINE)
    targets = targets_of(problem, first, seeds, workspace)
    reached = {
        row.name: _reached(problem, row, series, timed, targets)
        for row, (series, timed) in runs.items()
    }
    trial = Trial(problem, first, problem.grid[0], seed=0)
    fastest = {}
    for clock in beyond().networks:
        times = Timing(trial, clock, unlimited=True).load(workspace)
        run = retimed(runs[first][0].runs[0], times)
        fastest[clock] = first_reached(run, "simulated_seconds", targets[0], problem.measure)
    return Race(problem, reached, fastest)


def _runs(
    problem: Problem, row: Row, seeds: int, workspace: Workspace
) -> tuple[Series, dict[str, Series]]:
    """The curves of a method, and the same timed on each clock."""
    trials = trials_of(problem, row, seeds)
    if row.arrives:
        timed = {
            clock: _series(row, [t.load(workspace) for t in trials if t.clock == clock])
            for clock in beyond().clocks_of(row)
        }
        return next(iter(timed.values())), timed
    runs = [trial.load(workspace) for trial in trials]
    timings = [timing for timing in timings_of(problem, row) if not timing.unlimited]
    return _series(row, runs), {
        timing.clock: _series(row, [retimed(run, timing.load(workspace)) for run in runs])
        for timing in timings
    }


def _series(row: Row, runs: Sequence[Run]) -> Series:
    return Series(row.label, tuple(runs))


def _reached(
    problem: Problem,
    row: Row,
    series: Series,
    timed: Mapping[str, Series],
    targets: Sequence[float],
) -> Reached:
    def until(of: Series, x: str) -> tuple[float, ...]:
        pairs = zip(of.runs, targets, strict=True)
        return tuple(first_reached(run, x, loss, problem.measure) for run, loss in pairs)

    return Reached(
        row,
        series,
        timed,
        losses=tuple(final_loss(run, problem.measure) for run in series.runs),
        steps=until(series, "step"),
        pulls=until(series, "pulls_per_worker"),
        bytes=until(series, "bytes"),
        seconds={clock: until(of, "simulated_seconds") for clock, of in timed.items()},
    )


def mean(values: Sequence[float]) -> float | None:
    """None unless all are finite."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else None


def _setting(row: Row) -> dict[str, Any]:
    return {"for": list(row.serves), "method": row.method, "planned": row.planned}


def record_row(race: Race, reached: Reached) -> dict[str, Any]:
    """A method's row in the record."""
    finite = mean(reached.losses) is not None
    return {
        "problem": race.problem.name,
        "method": reached.row.name,
        "label": reached.row.label,
        "rival": reached.row.rival,
        "setting": _setting(reached.row) if reached.row.serves else None,
        "lr": reached.row.lr,
        "trained": reached.row.steps_on(race.problem),
        "loss": mean(reached.losses),
        "loss_low": min(reached.losses) if finite else None,
        "loss_high": max(reached.losses) if finite else None,
        "arrived": sum(map(math.isfinite, reached.steps)),
        "seeds": len(reached.steps),
        "steps": mean(reached.steps),
        "pulls": mean(reached.pulls),
        "bytes": mean(reached.bytes),
        "seconds": {clock: mean(values) for clock, values in reached.seconds.items()},
    }
