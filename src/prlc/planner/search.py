"""Successive halving over learning rates, a race of pull ratios: by time to a target loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prlc.methods import PRLC
from prlc.planner.cost import NSGD_TWIN, StepClock
from prlc.planner.trials import Trials

__all__ = ["OnTrial", "Outcome", "Search", "TrialProgress"]

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the longest trial; at each, the better half goes on
LONGEST = 8  # times the steps of NSGD: no trial is longer
SLACK = 1.5  # times NSGD's time to the target: no trial takes longer on the simulated network
_SMOOTHED = 3  # evaluations whose mean ranks the trials at a rung


@dataclass(frozen=True)
class TrialProgress:
    """How far the trials of one method are; `total` is the most they may take."""

    method: PRLC
    steps: int
    total: int
    loss: float


OnTrial = Callable[[TrialProgress], None]


@dataclass(frozen=True)
class Outcome:
    """The best learning rate of a method, and when its trial met the target, if it did."""

    method: PRLC
    lr: float
    steps: float | None
    seconds: float | None
    lowest_loss: float
    """Of the steps up to the target, or of all that it could have."""
    longest: int
    """So many steps the trials of this method could have."""


@dataclass(frozen=True)
class Search:
    """Finds the best of the learning rates `rates` for one method after the other."""

    trials: Trials
    clocks: Mapping[PRLC, StepClock]
    rates: Sequence[float]
    steps: int
    on_trial: OnTrial | None = None

    def nsgd(self, target: float | None) -> Outcome:
        """At what rate it is lowest within `steps`, or soonest at the target if there is one."""
        longest = self.steps if target is None else LONGEST * self.steps
        return self._best_rate(NSGD_TWIN, target, longest)

    def at(self, method: PRLC, target: float, nsgd: Outcome) -> Outcome:
        """Which rate reaches the target soonest, if any does within the limits above."""
        longest = LONGEST * self.steps
        if nsgd.seconds is not None:
            longest = self.clocks[method].steps_within(SLACK * nsgd.seconds, longest)
        return self._best_rate(method, target, max(longest, self.trials.every))

    def _best_rate(self, method: PRLC, target: float | None, longest: int) -> Outcome:
        count = _Count(method, longest, len(self.rates), self.on_trial)
        left = sorted(self.rates)
        for rung in RUNGS:
            until = max(self.trials.every, math.ceil(rung * longest))
            left = self._ranked(method, left, target, until, count)
            if rung < 1:
                left = left[: max(2, math.ceil(len(left) / 2))]
        count.finish()
        return self._outcome(method, left[0], target, longest)

    def _ranked(
        self, method: PRLC, rates: list[float], target: float | None, until: int, count: _Count
    ) -> list[float]:
        """Best first: by the step at which the target is met, then by the loss after `until`.

        Once a trial has met the target, the others need not go on beyond that step.
        """
        ranks: dict[float, tuple[float, float]] = {}
        for lr in rates:
            trial, crossing = self.trials(method, lr), None
            if target is not None:
                crossing = trial.crossing(target, until, count.add)
            if crossing is not None:
                ranks[lr] = (crossing, 0.0)
                until = min(until, math.ceil(crossing / self.trials.every) * self.trials.every)
                continue
            losses = trial.losses(until, count.add)
            # The lowest loss of NSGD within `steps` is what the others have to reach.
            defines = target is None and until == self.steps
            ranks[lr] = (math.inf, float(losses.min() if defines else losses[-_SMOOTHED:].mean()))
        return sorted(rates, key=lambda lr: ranks[lr])

    def _outcome(self, method: PRLC, lr: float, target: float | None, longest: int) -> Outcome:
        trial = self.trials(method, lr)
        if target is None:
            target = float(trial.losses(longest).min())
        steps = trial.crossing(target, longest)
        if steps is None:
            lowest = float(trial.losses(longest).min())
            return Outcome(method, lr, None, None, lowest, longest)
        return Outcome(method, lr, steps, self.clocks[method].seconds(steps), target, longest)


class _Count:
    """Adds up the steps of the trials of one method and tells how far they are."""

    def __init__(self, method: PRLC, longest: int, rates: int, on_trial: OnTrial | None) -> None:
        self._method, self._on_trial, self._steps, self._loss = method, on_trial, 0, math.nan
        left, before, total = rates, 0.0, 0.0
        for rung in RUNGS:
            total += left * (rung - before)
            left, before = min(left, max(2, math.ceil(left / 2))), rung
        self._total = math.ceil(total * longest)

    def add(self, steps: int, loss: float) -> None:
        """So many steps were trained."""
        self._steps, self._loss = self._steps + steps, loss
        self._tell(min(self._steps, self._total))

    def finish(self) -> None:
        """No more are needed."""
        self._tell(self._total)

    def _tell(self, steps: int) -> None:
        if self._on_trial is not None:
            self._on_trial(TrialProgress(self._method, steps, self._total, self._loss))
