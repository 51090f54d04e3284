"""The target of a plan: the loss of NSGD at its best step size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from prlc.errors import ConfigError
from prlc.methods import NSGD
from prlc.planner.prices import Choice, Prices
from prlc.planner.trials import Candidate, Trial, Trials

_RUNGS = (1 / 8, 1 / 2, 1.0)
_STEP_SIZES = (4.0, 1.0, 0.25, 0.06, 0.016, 0.004, 0.001)
_MOST_CLIMBS = 5  # halvings or doublings of the step size beyond those that it began with
_SLOWEST = 0.01  # the progress of who is not below the first loss yet


class Target:
    """NSGD's run, and how far others have come on its way."""

    nsgd: Choice
    """NSGD at the step size with the lowest loss, or soonest at a given target."""
    loss: float
    """To be reached."""

    def __init__(
        self,
        trials: Trials,
        prices: Prices,
        step_sizes: Sequence[float] | None,
        wanted: float | None,
        within: float,
        on_round: Callable[[int, int], None],
    ) -> None:
        """`wanted`: a loss; None for NSGD's lowest, to `within`."""
        self._trials, self._wanted, self._within = trials, wanted, within
        at, T = prices.place(NSGD()), trials.steps
        assert at is not None, "NSGD's optimizer runs anywhere"

        def score(lr: float, until: int = T) -> tuple[float, float]:
            trial = trials(Candidate(NSGD(), at, lr, T))
            soonest = None if wanted is None else trial.reaches(wanted, until)
            return (math.inf if soonest is None else soonest, min(trial.losses(until)))

        left = sorted(step_sizes or _STEP_SIZES)
        for number, rung in enumerate(_RUNGS if trials.constant else _RUNGS[:1]):
            on_round(number, len(_RUNGS))
            left = sorted(left, key=lambda lr: score(lr, math.ceil(rung * T)))
            left = left[: max(2, math.ceil(len(left) / 2))]
        best = _climbed(left[0], score, step_sizes)
        on_round(len(_RUNGS), len(_RUNGS))
        trial = trials(Candidate(NSGD(), at, best, T))
        self.loss, steps = self._reached(trial)
        cost, loss = prices.whole(trial.candidate, steps), trial.losses(steps)[-1]
        self.nsgd = Choice(trial.candidate, steps, cost, loss, reached=True)

    def _reached(self, trial: Trial) -> tuple[float, int]:
        """The target, and the steps that NSGD takes to it."""
        T, wanted = self._trials.steps, self._wanted
        losses = trial.losses(T)
        start, lowest = losses[0], min(losses)
        if wanted is not None and not wanted < start:
            raise ConfigError(
                f"The target loss {wanted:g} should be below {start:.4g}, the loss at the start: "
                "give a smaller one."
            )
        if not lowest < start:
            raise ConfigError(
                f"No step size tried lowered the loss of {start:.4g} in {T} steps of NSGD. Give "
                "other step sizes (--lr) or more steps."
            )
        target = self._near(lowest) if wanted is None else wanted
        if not target < start:
            raise ConfigError(
                f"{T} steps of NSGD lower the loss from {start:.4g} to {lowest:.4g}, no more than "
                f"what counts as close enough ({self._within:g} of it). Give other step sizes "
                "(--lr), more steps, or a smaller --within."
            )
        reached = trial.reaches(target, T)
        if reached is None:
            raise ConfigError(
                f"NSGD did not reach the target loss {target:g} in {T} steps; its lowest was "
                f"{lowest:.4g}. Give a higher target or more steps."
            )
        return target, reached if self._trials.constant else T

    def on_another_seed(self, trials: Trials) -> float:
        """The loss to be reached there: as close to NSGD's, with the same settings."""
        if self._wanted is not None:
            return self._wanted
        return self._near(min(trials(self.nsgd.candidate).losses(trials.steps)))

    def progress(self, loss: float) -> float:
        """The share of NSGD's way to the target after which it has this loss; 1 at the most."""
        steps = np.interp(
            [-loss, -self.loss], [-each for each in self._pace], [*self._pace.values()]
        )
        return min(1.0, max(float(steps[0] / steps[1]), _SLOWEST))

    @cached_property
    def _pace(self) -> dict[float, int]:
        """The losses at which NSGD was lower than ever before, and their steps."""
        trial = self._trials(self.nsgd.candidate)
        pace: dict[float, int] = {}
        for number, loss in enumerate(trial.losses(self._trials.steps)):
            if not pace or loss < min(pace):
                pace[loss] = number * trial.every
        return pace

    def _near(self, loss: float) -> float:
        return loss + self._within * abs(loss)


def _climbed(
    lr: float,
    score: Callable[[float], tuple[float, float]],
    sizes: Sequence[float] | None,
) -> float:
    """The step size, doubled or halved while that lowers its score; or the next of some sizes."""

    def beyond(lr: float, up: bool) -> float | None:
        if sizes is None:
            return lr * (2.0 if up else 0.5)
        further = [size for size in sizes if (size > lr if up else size < lr)]
        return (min(further) if up else max(further)) if further else None

    best = score(lr)
    for up in (True, False):
        for _ in range(_MOST_CLIMBS):
            further = beyond(lr, up)
            if further is None or not (found := score(further)) < best:
                break
            lr, best = further, found
    return lr
