"""What claims are judged by: numbers read off the curves, a number per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prlc.experiments.tuning import final_loss
from prlc.report import Run, Series

__all__ = [
    "CLOSE",
    "Ratio",
    "diverged",
    "final_losses",
    "first_reached",
    "mean_loss",
    "ratio",
]

#: A run has reached a loss when it first comes within a part of this of it: the width of a line
#: in the paper's figures, and several times what the seeds differ by.
CLOSE = 0.01


@dataclass(frozen=True)
class Ratio:
    """One number per seed, as a quotient of two methods' numbers."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def __str__(self) -> str:
        """The mean, and the range where there are several seeds that differ."""
        mean, low, high = (f"{v:.2f}" for v in (self.mean, min(self.values), max(self.values)))
        return mean if low == high else f"{mean} ({low} to {high})"


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Seed by seed; None if any is missing, infinite, or divided by zero."""
    pairs = list(zip(above, below, strict=True))
    if not all(math.isfinite(a) and math.isfinite(b) and b > 0 for a, b in pairs):
        return None
    return Ratio(tuple(a / b for a, b in pairs))


def final_losses(series: Series) -> list[float]:
    """The training loss that each run ended with; infinite where it diverged."""
    return [final_loss(run) for run in series.runs]


def diverged(series: Series) -> bool:
    """Whether any seed diverged."""
    return not series.finished


def mean_loss(run: Run, first: float, last: float) -> float:
    """The mean training loss of the evaluations after epoch `first`, up to epoch `last`."""
    epochs = run.metrics["epoch"]
    chosen = run.metrics.loc[(epochs > first + 1e-9) & (epochs <= last + 1e-9), "train_loss"]
    return float(chosen.mean())


def first_reached(run: Run, x: str, loss: float) -> float:
    """The value of `x` at which the training loss first is `loss` or less; infinite if never.

    Between two evaluations both run straight.
    """
    losses, xs = run.metrics["train_loss"].tolist(), run.metrics[x].tolist()
    for k, (now, at) in enumerate(zip(losses, xs, strict=True)):
        if now <= loss:
            if k == 0:
                return float(at)
            part = (losses[k - 1] - loss) / (losses[k - 1] - now)
            return float(xs[k - 1] + part * (at - xs[k - 1]))
    return math.inf
