"""Short trial runs, and successive halving over their learning rates.

What a scheduled method does depends on the seed, not on the network; the network only decides
when each step ends. So a trial is trained once and can be priced for any number of networks.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import nn

from prlc.data import Dataset
from prlc.engines import Engine, Execution, Job, Loss, Simulator
from prlc.engines.simulator.execution import choose_execution, use_threads
from prlc.errors import DivergedError
from prlc.methods import PRLC
from prlc.planner.cost import NSGD_TWIN, StepClock
from prlc.runs.config import Config
from prlc.runs.evaluation import Evaluator
from prlc.runs.jobs import make_job

_MEMORY_BYTES = 10**9  # of worker models kept for continuing; trials beyond that are replayed

OnSteps = Callable[[int, float], None]
"""Called with the number of steps just trained, and the newest loss."""


# ---- trial runs ----------------------------------------------------------------------------------


class TrialRun:
    """The training loss of one run, evaluated every few steps, trained only as far as asked."""

    def __init__(self, job: Job, evaluator: Evaluator, every: int, trials: Trials) -> None:
        self._job, self._evaluator, self._every, self._trials = job, evaluator, every, trials
        self._engine: Engine | None = None
        self._losses: list[float] = []

    def losses(self, steps: int, on_steps: OnSteps | None = None) -> NDArray[np.float64]:
        """The losses at steps 0, every, 2 every, ... up to `steps`; infinite once diverged."""
        wanted = steps // self._every + 1
        for at in range(wanted):
            self._loss(at, on_steps)
        return np.asarray(self._losses[:wanted])

    def crossing(self, target: float, steps: int, on_steps: OnSteps | None = None) -> float | None:
        """The step at which the loss first reaches the target, or None if not within `steps`.

        Trains no further than needed; interpolates between evaluations.
        """
        before = math.inf
        for at in range(steps // self._every + 1):
            loss = self._loss(at, on_steps)
            if loss <= target:
                share = (before - target) / (before - loss) if before < math.inf else 1.0
                return (at - 1 + share) * self._every
            before = loss
        return None

    def release(self) -> None:
        """Free the worker models; asking for more steps replays the trial."""
        self._engine = None

    def _loss(self, at: int, on_steps: OnSteps | None) -> float:
        """The loss of evaluation number `at`; trains up to it if needed."""
        while len(self._losses) <= at:
            self._losses.append(self._next())
            if on_steps is not None:
                on_steps(self._every if len(self._losses) > 1 else 0, self._losses[-1])
        return self._losses[at]

    def _next(self) -> float:
        if self._losses and not math.isfinite(self._losses[-1]):
            return math.inf
        try:
            engine = self._train_to(len(self._losses) * self._every)
        except DivergedError:
            self.release()
            return math.inf
        engine.copy_global_model(self._trials.scratch)
        with use_threads(self._trials.execution.threads):
            loss = self._evaluator(self._trials.scratch)["train_loss"]
        return loss if loss is not None and math.isfinite(loss) else math.inf

    def _train_to(self, steps: int) -> Engine:
        if self._engine is None:
            self._engine = Simulator(self._job, None, self._trials.execution)
        self._trials.keep(self)
        while self._engine.steps_done < steps:
            self._engine.step()
            self._trials.steps_trained += 1
        return self._engine


class Trials:
    """All trial runs on one model, loss, data set and partition, by method and learning rate."""

    def __init__(
        self, model: nn.Module, loss: Loss, data: Dataset, config: Config, every: int
    ) -> None:
        train_only = dataclasses.replace(data, test_inputs=None, test_targets=None)
        job = make_job(model, loss, train_only, config)
        self.config, self.job, self.every = config, job, every
        self._execution = config.execution
        self.scratch = copy.deepcopy(job.model)
        self.steps_trained = 0
        self._evaluator = Evaluator(job, config.eval_samples)
        self._trials: dict[tuple[PRLC, float], TrialRun] = {}
        self._recent: list[TrialRun] = []
        model_bytes = job.sizes().push * job.num_workers
        self._max_kept = max(1, _MEMORY_BYTES // max(1, model_bytes))

    def __call__(self, method: PRLC, lr: float) -> TrialRun:
        """The run of this method with a constant learning rate."""
        key = (method, lr)
        if key not in self._trials:
            job = dataclasses.replace(self.job, method=method, lr=lambda _: lr)
            self._trials[key] = TrialRun(job, self._evaluator, self.every, self)
        return self._trials[key]

    @cached_property
    def execution(self) -> Execution:
        """How the simulator computes; measured on first use."""
        return self._execution or choose_execution(self.job)

    def keep(self, trial: TrialRun) -> None:
        """Keep the models of the trial in use; release those least recently used."""
        self._recent = [other for other in self._recent if other is not trial] + [trial]
        while len(self._recent) > self._max_kept:
            self._recent.pop(0).release()


# ---- successive halving --------------------------------------------------------------------------

RUNGS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # of the longest trial; the better half continues at each
MAX_STEPS = 8  # the longest trial, in multiples of NSGD's steps
MAX_TIME = 1.5  # the longest trial, in multiples of NSGD's simulated time to the target
_SMOOTHED = 3  # evaluations whose mean ranks the trials at a rung


@dataclass(frozen=True)
class TrialProgress:
    """How far the trials of one method are; `total` is the most steps they can take."""

    method: PRLC
    steps: int
    total: int
    loss: float


OnTrial = Callable[[TrialProgress], None]


@dataclass(frozen=True)
class BestRate:
    """The best learning rate of a method, and when it reached the target, if it did."""

    method: PRLC
    lr: float
    steps: float | None
    seconds: float | None
    lowest_loss: float
    """Up to the target, or of the whole trial; NaN if nothing was trained."""


@dataclass(frozen=True)
class Search:
    """Finds the best of the learning rates `rates` for one method after another."""

    trials: Trials
    clocks: Mapping[PRLC, StepClock]
    rates: Sequence[float]
    steps: int
    on_trial: OnTrial | None = None

    def nsgd(self, target: float | None) -> BestRate:
        """The rate with the lowest loss within `steps`, or soonest at a given target."""
        longest = self.steps if target is None else MAX_STEPS * self.steps
        return self._best_rate(NSGD_TWIN, target, longest)

    def at(self, method: PRLC, target: float, nsgd: BestRate) -> BestRate:
        """The rate that reaches the target soonest, within `MAX_STEPS` and `MAX_TIME`."""
        longest = MAX_STEPS * self.steps
        if nsgd.seconds is not None:
            longest = self.clocks[method].steps_within(MAX_TIME * nsgd.seconds, longest)
        return self._best_rate(method, target, max(longest, self.trials.every))

    def _best_rate(self, method: PRLC, target: float | None, longest: int) -> BestRate:
        counter = _StepCounter(method, longest, len(self.rates), self.on_trial)
        left = sorted(self.rates)
        for rung in RUNGS:
            until = max(self.trials.every, math.ceil(rung * longest))
            left = self._ranked(method, left, target, until, counter)
            if rung < 1:
                left = left[: max(2, math.ceil(len(left) / 2))]
        counter.finish()
        lr, trial = left[0], self.trials(method, left[0])
        if target is None:
            target = float(trial.losses(longest).min())
        steps = trial.crossing(target, longest)
        if steps is None:
            return BestRate(method, lr, None, None, float(trial.losses(longest).min()))
        return BestRate(method, lr, steps, self.clocks[method].seconds(steps), target)

    def _ranked(
        self,
        method: PRLC,
        rates: list[float],
        target: float | None,
        until: int,
        counter: _StepCounter,
    ) -> list[float]:
        """Best first: by the step that reaches the target, then by the loss after `until`.

        Once a trial has reached the target, the others stop at that step.
        """
        ranks: dict[float, tuple[float, float]] = {}
        for lr in rates:
            trial, crossing = self.trials(method, lr), None
            if target is not None:
                crossing = trial.crossing(target, until, counter.add)
            if crossing is not None:
                ranks[lr] = (crossing, 0.0)
                until = min(until, math.ceil(crossing / self.trials.every) * self.trials.every)
                continue
            losses = trial.losses(until, counter.add)
            # NSGD's lowest loss within `steps` is the target of the other methods.
            sets_target = target is None and until == self.steps
            loss = losses.min() if sets_target else losses[-_SMOOTHED:].mean()
            ranks[lr] = (math.inf, float(loss))
        return sorted(rates, key=lambda lr: ranks[lr])


class _StepCounter:
    """Adds up the steps of one method's trials and reports the progress."""

    def __init__(self, method: PRLC, longest: int, rates: int, on_trial: OnTrial | None) -> None:
        self._method, self._on_trial, self._steps, self._loss = method, on_trial, 0, math.nan
        left, before, total = rates, 0.0, 0.0
        for rung in RUNGS:
            total += left * (rung - before)
            left, before = min(left, max(2, math.ceil(left / 2))), rung
        self._total = math.ceil(total * longest)

    def add(self, steps: int, loss: float) -> None:
        self._steps, self._loss = self._steps + steps, loss
        self._report(min(self._steps, self._total))

    def finish(self) -> None:
        self._report(self._total)

    def _report(self, steps: int) -> None:
        if self._on_trial is not None:
            self._on_trial(TrialProgress(self._method, steps, self._total, self._loss))
