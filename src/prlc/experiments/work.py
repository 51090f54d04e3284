"""What has to be run for some figures, as pieces for a pool of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prlc.experiments.clocks import Replay
from prlc.experiments.recipes import Place, Recipe, train
from prlc.experiments.settings import Figure, Task, methods_of, shared
from prlc.methods import Asynchronous, Scheduled, parse_method

__all__ = ["Clocking", "Making", "Piece", "recipes", "replays"]

_CLOCK_MS = 0.7  # about what the clock alone needs for a step


@dataclass(frozen=True)
class Making:
    """The run of a recipe, as a piece of work."""

    recipe: Recipe
    place: Place

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def cost(self) -> float:
        """About how many seconds it takes on one core; only progress bars ask."""
        return self.recipe.steps * self.recipe.task.step_ms / 1e3

    def do(self, report: Callable[[float], None]) -> None:
        train(self.recipe, self.place, lambda progress: report(progress.step / progress.steps))


@dataclass(frozen=True)
class Clocking:
    """A run's times on another clock, as a piece of work."""

    replay: Replay
    place: Place

    @property
    def name(self) -> str:
        return self.replay.name

    @property
    def cost(self) -> float:
        return self.replay.recipe.steps * _CLOCK_MS / 1e3

    def do(self, report: Callable[[float], None]) -> None:
        del report  # it takes seconds
        self.replay.make(self.place)


Piece = Making | Clocking


def recipes(
    figures: Sequence[Figure], task: Task, seeds: int, lr_of: Callable[[str], float]
) -> list[Recipe]:
    """Every run that the figures need of a task, each once; `lr_of` a method."""
    return [
        Recipe(task, method, lr_of(method), seed, clock)
        for seed in range(seeds)
        for method in methods_of(figures)
        for clock in _clocks(figures, method)
    ]


def replays(figures: Sequence[Figure], task: Task, seeds: int) -> list[Replay]:
    """The times that the figures need beside those of the runs themselves."""
    found = [
        Replay(Recipe(task, method, shared().lr, seed), clock, run_ahead)
        for figure in figures
        for method in figure.methods
        if isinstance(parse_method(method), Scheduled)
        for clock in figure.clocks
        for run_ahead in (True, False)
        for seed in range(seeds)
    ]
    return [replay for replay in found if not replay.is_the_runs_own]


def _clocks(figures: Sequence[Figure], method: str) -> tuple[str, ...]:
    """The networks that the method has to be run on, not only clocked: arrivals decide ASGD."""
    timed = [clock for figure in figures if method in figure.methods for clock in figure.clocks]
    if not timed or not isinstance(parse_method(method), Asynchronous):
        return (next(iter(shared().networks)),)
    return tuple(dict.fromkeys(timed))
