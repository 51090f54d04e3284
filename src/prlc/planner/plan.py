"""Puts the plan together: constants, prices of a step, trials (or bounds), and the choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from prlc.config import Config
from prlc.constants import MeasuredConstants, measure_constants
from prlc.data import Dataset, Partition, parse_partition
from prlc.engines import Loss, Plan
from prlc.errors import ConfigError
from prlc.methods import PRLC
from prlc.network import Network
from prlc.planner import bounds
from prlc.planner.advice import Advice, Effort
from prlc.planner.cost import NSGD_TWIN, StepClock, Work, price
from prlc.planner.search import OnTrial, Search
from prlc.planner.task import Task
from prlc.planner.trials import Trials
from prlc.schedules import Constant
from prlc.theory import Constants

__all__ = ["RATIOS", "advise", "make_trials"]

RATIOS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)

_EVALUATIONS = 40  # of NSGD's trial
_FEWEST_STEPS = 8
_TOGETHER = PRLC(1.0, every=10)

OnMeasure = Callable[[str, int, int], None]
"""Called with what is measured, how much of it is done, and how much there is at most."""


def make_trials(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    workers: int = 20,
    batch_size: int = 10,
    steps: int = 200,
    partition: Partition | str = "iid",
    seed: int = 0,
    device: str = "cpu",
    plan: Plan | None = None,
    eval_samples: int | None = 10_000,
) -> Trials:
    """Trial runs that several calls of `advise` with the same settings may share."""
    config = Config(
        workers=workers,
        batch_size=batch_size,
        steps=steps,
        partition=parse_partition(partition) if isinstance(partition, str) else partition,
        seed=seed,
        device=device,
        plan=plan,
        eval_samples=eval_samples,
    )
    if steps < _FEWEST_STEPS:
        raise ConfigError(
            f"A plan needs trials of at least {_FEWEST_STEPS} steps, but steps is {steps}."
        )
    return Trials(model, loss, Dataset.of(data), config, max(1, steps // _EVALUATIONS))


def advise(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    workers: int = 20,
    batch_size: int = 10,
    network: Network | str | Mapping[str, Any] = "paper",
    ratios: Sequence[float] = RATIOS,
    learning_rates: Sequence[float] | None = None,
    target_loss: float | None = None,
    steps: int = 200,
    constants: Constants | MeasuredConstants | None = None,
    use_trials: bool = True,
    partition: Partition | str = "iid",
    seed: int = 0,
    device: str = "cpu",
    plan: Plan | None = None,
    eval_samples: int | None = 10_000,
    trials: Trials | None = None,
    on_trial: OnTrial | None = None,
    on_measure: OnMeasure | None = None,
) -> Advice:
    """Which pull ratio and step size reach a target loss soonest on this network.

    ratios: those to choose from; NSGD is always run, to compare with.
    learning_rates: those to choose from; by default 2/L, 1/L, ... down to 1/(16 L).
    target_loss: on the training data. By default the lowest loss of NSGD, at its best step size,
        within `steps` steps.
    constants: known ones, or measured ones; measured here if not given.
    use_trials: False gives the answer of the bounds, which are loose.
    trials: from `make_trials` with the same settings, to plan for several networks at the cost of
        one. The other settings are those of `prlc.train`.
    """
    data, network = Dataset.of(data), Network.of(network)
    ratios = tuple(float(PRLC(ratio).pull_ratio) for ratio in ratios)
    given_rates = None if learning_rates is None else tuple(Constant(r).lr for r in learning_rates)
    if not ratios or given_rates == ():
        raise ConfigError("Give at least one pull ratio and one learning rate to choose from.")
    if target_loss is not None and not use_trials:
        raise ConfigError("A target loss needs trials: the bounds speak of gradients, not of it.")
    own = make_trials(
        model,
        loss,
        data,
        workers=workers,
        batch_size=batch_size,
        steps=steps,
        partition=partition,
        seed=seed,
        device=device,
        plan=plan,
        eval_samples=eval_samples,
    )
    trials = trials or own
    if trials.config != own.config:
        theirs, ours = trials.config.as_json(), own.config.as_json()
        key = next((k for k in ours if theirs[k] != ours[k]), "plan")
        raise ConfigError(
            f"The trials to share have {key} = {theirs.get(key)}, but the plan is for "
            f"{ours.get(key)}: make them anew with the same settings."
        )
    known, measured = constants, None
    if not isinstance(known, Constants):
        measured = known or measure_constants(
            model,
            loss,
            data,
            batch_size=batch_size,
            seed=seed,
            device=device,
            tolerance=1e-2,
            progress=on_measure,
        )
        known = measured.constants()
    work = Work.of(trials.job, network)
    methods = [NSGD_TWIN, *(PRLC(r) for r in sorted({*ratios} - {1.0}, reverse=True))]
    task = Task(
        work=work,
        prices={method: price(network, work, method, seed) for method in methods},
        constants=known,
        ratios=ratios,
        rates=tuple(sorted({*(given_rates or bounds.learning_rates(known.smoothness))})),
        fixed_rates=given_rates is not None,
        steps=steps,
        target=target_loss,
    )
    per_step = {method.pull_ratio: p.seconds_per_step for method, p in task.prices.items()}
    theory = {name: bounds.answers(name, per_step, workers, steps, known) for name in bounds.BOUNDS}
    effort: Effort | None = None
    if use_trials:
        began, before = time.perf_counter(), trials.steps_trained
        clocks = {method: StepClock(network, work, method, seed) for method in methods}
        rows, target_loss = task.by_trials(Search(trials, clocks, task.rates, steps, on_trial))
        took = time.perf_counter() - began
        effort = Effort(len(methods) * len(task.rates), trials.steps_trained - before, took)
    else:
        name = "bounded_gradients"
        rows = task.by_bound(bounds.answers(name, per_step, workers, steps, known, given_rates))
    recommended = task.choose(rows)
    return Advice(
        recommended=recommended,
        rows=rows,
        target_loss=target_loss,
        target_given=task.target is not None,
        nsgd_steps=steps,
        effort=effort,
        constants=known,
        measured=measured,
        theory=theory,
        learning_rates=task.rates,
        together_seconds=price(network, work, _TOGETHER, seed).seconds_per_step,
        workers=workers,
        network=network,
        notes=task.notes(rows, recommended, use_trials),
    )
