"""A step size for every method: the same grid, the same number of short runs, the same judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prlc.experiments.recipes import Recipe
from prlc.experiments.settings import Task, shared
from prlc.report import Run

__all__ = ["Tuned", "choose", "final_loss", "tuning_recipes"]


@dataclass(frozen=True)
class Tuned:
    """What the grid gave for one method on one task."""

    task: str
    method: str
    lr: float
    losses: tuple[tuple[float, float], ...]
    """Of each step size, the training loss at the end of its run; infinite if it diverged."""

    @property
    def at_edge(self) -> bool:
        """Whether the best is the smallest or the largest tried: a wider grid may hold a better."""
        rates = [lr for lr, _ in self.losses]
        return self.lr in (min(rates), max(rates))


def tuning_recipes(task: Task, method: str) -> list[Recipe]:
    """The runs that the method's step size is chosen by."""
    return [Recipe(task, method, lr, shared().tuning_seed, tuning=True) for lr in sorted(task.grid)]


def choose(task: Task, method: str, run_of: Callable[[Recipe], Run]) -> Tuned:
    """The step size with the lowest training loss at the end; of equals, the smallest."""
    recipes = tuning_recipes(task, method)
    losses = tuple((recipe.lr, final_loss(run_of(recipe))) for recipe in recipes)
    return Tuned(task.name, method, min(losses, key=lambda pair: (pair[1], pair[0]))[0], losses)


def final_loss(run: Run) -> float:
    """The training loss that a run ended with; infinite if it diverged."""
    loss = float(run.metrics["train_loss"].iloc[-1])
    return loss if run.finished and math.isfinite(loss) else math.inf
