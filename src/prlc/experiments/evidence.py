"""The curves of one task under one setting, as claims and figures ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prlc.experiments.clocks import Replay
from prlc.experiments.recipes import Place, Recipe, load_run
from prlc.experiments.settings import Figure, Task, methods_of, shared
from prlc.methods import Asynchronous, parse_method
from prlc.report import Run, Series

__all__ = ["ASGD", "BARRIER", "RUN_AHEAD", "Evidence", "gather"]

ASGD, RUN_AHEAD, BARRIER = "ASGD", "run-ahead", "barrier"


@dataclass(frozen=True)
class Evidence:
    """One task, with the paper's step size for everybody or with each method's own."""

    task: Task
    tuned: bool
    rates: Mapping[str, float]
    """The step size of each method."""
    series: Mapping[str, Series]
    """The curves, by method as the figures name it."""
    timed: Mapping[tuple[str, str], Series]
    """The curves on each clock: by its name and ASGD, RUN_AHEAD or BARRIER."""

    @property
    def setting(self) -> str:
        return f"{self.task.title}, {'tuned' if self.tuned else f'lr {shared().lr:g}'}"


def gather(
    figures: Sequence[Figure],
    task: Task,
    seeds: int,
    lr_of: Callable[[str], float],
    place: Place,
    *,
    tuned: bool,
) -> Evidence:
    """Read the finished runs."""
    rates = {method: lr_of(method) for method in methods_of(figures)}
    series, timed = {}, {}
    for method, lr in rates.items():
        recipes = [Recipe(task, method, lr, seed) for seed in range(seeds)]
        series[method] = _series([load_run(recipe, place) for recipe in recipes])
        for clock in {clock: None for f in figures if method in f.methods for clock in f.clocks}:
            if isinstance(parse_method(method), Asynchronous):
                runs = [load_run(replace(recipe, clock=clock), place) for recipe in recipes]
                timed[clock, ASGD] = _series(runs)
                continue
            for waiting in (RUN_AHEAD, BARRIER):
                runs = [_on(recipe, clock, waiting == RUN_AHEAD, place) for recipe in recipes]
                timed[clock, waiting] = _series(runs, f", {waiting}")
    return Evidence(task, tuned, rates, series, timed)


def _series(runs: Sequence[Run], suffix: str = "") -> Series:
    return Series(runs[0].label + suffix, tuple(runs))


def _on(recipe: Recipe, clock: str, run_ahead: bool, place: Place) -> Run:
    """The run as that clock would have timed it."""
    run, seen = load_run(recipe, place), Replay(recipe, clock, run_ahead)
    if seen.is_the_runs_own:
        return run
    seconds = run.metrics["step"].map(seen.load(place))
    return replace(run, metrics=run.metrics.assign(simulated_seconds=seconds))
