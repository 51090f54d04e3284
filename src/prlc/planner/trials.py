"""Short trial runs: how the loss falls with the steps, for a method and a learning rate.

What a scheduled method does depends on the seed, not on the network; the network only says when
each step is over. So a trial is trained once and may be priced for any number of networks.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import nn

from prlc.config import Config
from prlc.data import Dataset
from prlc.engines import Engine, Job, Loss, Plan, Simulator
from prlc.engines.plan import choose_plan, use_threads
from prlc.errors import DivergedError
from prlc.evaluation import Evaluator
from prlc.jobs import make_job
from prlc.methods import PRLC

__all__ = ["OnSteps", "Trial", "Trials"]

_MEMORY = 10**9  # bytes of worker models kept to go on from; beyond that, trials are replayed

OnSteps = Callable[[int, float], None]
"""Called with how many steps were just trained, and the newest loss."""


class Trial:
    """The training loss of one run, evaluated every few steps, as far as anybody asked."""

    def __init__(self, job: Job, evaluator: Evaluator, every: int, trials: Trials) -> None:
        self._job, self._evaluator, self._every, self._trials = job, evaluator, every, trials
        self._engine: Engine | None = None
        self._losses: list[float] = []

    def losses(self, steps: int, on_steps: OnSteps | None = None) -> NDArray[np.float64]:
        """The loss at steps 0, every, 2 every, ... up to `steps`; infinite after a divergence."""
        wanted = steps // self._every + 1
        for at in range(wanted):
            self._loss(at, on_steps)
        return np.asarray(self._losses[:wanted])

    def crossing(self, target: float, steps: int, on_steps: OnSteps | None = None) -> float | None:
        """The step at which the loss first is at the target; None if it is not within `steps`.

        Trains no further than needed. Between two evaluations the loss is interpolated.
        """
        before = math.inf
        for at in range(steps // self._every + 1):
            loss = self._loss(at, on_steps)
            if loss <= target:
                share = (before - target) / (before - loss) if before < math.inf else 1.0
                return (at - 1 + share) * self._every
            before = loss
        return None

    def _loss(self, at: int, on_steps: OnSteps | None) -> float:
        """The loss of evaluation number `at`, trained for if it is not known."""
        while len(self._losses) <= at:
            self._losses.append(self._next())
            if on_steps is not None:
                on_steps(self._every if len(self._losses) > 1 else 0, self._losses[-1])
        return self._losses[at]

    def release(self) -> None:
        """Let go of the worker models; who asks for more steps replays the trial."""
        self._engine = None

    def _next(self) -> float:
        if self._losses and not math.isfinite(self._losses[-1]):
            return math.inf
        steps = len(self._losses) * self._every
        try:
            engine = self._advanced(steps)
        except DivergedError:
            self.release()
            return math.inf
        engine.copy_global_model(self._trials.scratch)
        with use_threads(self._trials.plan.threads):
            loss = self._evaluator(self._trials.scratch)["train_loss"]
        return loss if loss is not None and math.isfinite(loss) else math.inf

    def _advanced(self, steps: int) -> Engine:
        if self._engine is None:
            self._engine = Simulator(self._job, None, self._trials.plan)
        self._trials.touched(self)
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
        self._plan = config.plan
        self.scratch = copy.deepcopy(job.model)
        self.steps_trained = 0
        self._evaluator = Evaluator(job, config.eval_samples)
        self._trials: dict[tuple[PRLC, float], Trial] = {}
        self._recent: list[Trial] = []
        held = job.traffic().bytes_per_push * job.num_workers
        self._most_kept = max(1, _MEMORY // max(1, held))

    def __call__(self, method: PRLC, lr: float) -> Trial:
        """The run of this method with a constant learning rate."""
        key = (method, lr)
        if key not in self._trials:
            job = dataclasses.replace(self.job, method=method, lr=lambda _: lr)
            self._trials[key] = Trial(job, self._evaluator, self.every, self)
        return self._trials[key]

    @cached_property
    def plan(self) -> Plan:
        """How the simulator computes; measured when it is first needed."""
        return self._plan or choose_plan(self.job)

    def touched(self, trial: Trial) -> None:
        """The trial is in use: keep its models, and at most so many others'."""
        self._recent = [other for other in self._recent if other is not trial] + [trial]
        while len(self._recent) > self._most_kept:
            self._recent.pop(0).release()
