"""`prlc.plan`: which member of the family to train with on a network, and what that costs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from prlc.data import Dataset, Partition, parse_partition
from prlc.engines import Execution, Loss
from prlc.engines.job import flops_per_step
from prlc.errors import ConfigError
from prlc.methods import NSGD
from prlc.methods.check import PLACES
from prlc.methods.settings import check_choice
from prlc.network import Network
from prlc.optim.optimizers import OptimizerFactory
from prlc.optim.schedules import parse_lr_schedule
from prlc.planner.cost import GOALS, Price, infinitely_fast, saved_if_free
from prlc.planner.family import FAMILY, Line, candidates
from prlc.planner.prices import Choice, Prices
from prlc.planner.search import OnSearch, Search
from prlc.planner.trials import Candidate, Trials
from prlc.runs.config import Config
from prlc.text import is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHIN = 0.01  # of NSGD's lowest loss: who comes as close has reached it
EVAL_SAMPLES = 1_000  # every few steps of a trial: more would take as long as its training
_TRIALS = 320  # more than a plan for the digits takes
_FEWEST_TRIALS = 24
_OPERATIONS = 3e13  # of all trials together: tens of minutes on two cores
_TRAINED = 0.6  # of the steps of all trials, if each ran for as long as NSGD


@dataclass(frozen=True)
class Effort:
    """The cost of a search."""

    trials: int
    """Candidates that were begun and neither diverged nor were too dear from the first."""
    steps: int
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Plan:
    """What to use, what it costs, and what else was weighed."""

    chosen: Choice
    nsgd: Choice
    weighed: tuple[Choice, ...]
    """All candidates, the cheapest first after the two above."""
    goal: str
    target_loss: float
    within: float
    """Of NSGD's lowest loss, where no target was given."""
    limit_seconds: float
    """NSGD's steps on an infinitely fast network."""
    saved_if_free: dict[str, float]
    """The share of the chosen one's time that an infinitely fast resource would save."""
    effort: Effort
    network: Network
    schedule: str
    optimizer: str | OptimizerFactory
    seeds: int
    """On so many the chosen one gets there."""
    trials: Trials = field(compare=False, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """What the plan found, as `prlc.train` takes it."""
        candidate = self.chosen.candidate
        return {
            "method": str(candidate.method),
            "lr": candidate.lr,
            "schedule": self.schedule,
            "steps": self.chosen.steps,
            "optimizer": self.optimizer,
            "optimizer_at": candidate.optimizer_at,
            "eval_samples": self.trials.config.eval_samples,
        }

    def plot(self, path: Path | str | None = None, title: str | None = None) -> Figure:
        """Time against bytes of all that was weighed; saved if a path is given."""
        from prlc.planner.render import plot

        return plot(self, path, title)

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON; infinite values become null."""
        chosen, nsgd = self.chosen, self.nsgd
        optimizer = self.optimizer if isinstance(self.optimizer, str) else repr(self.optimizer)
        content = {
            **_row(chosen),
            "schedule": self.schedule,
            "optimizer": optimizer,
            "for": self.goal,
            "target_loss": self.target_loss,
            "limit_seconds": self.limit_seconds,
            "nsgd_seconds": nsgd.cost.seconds,
            "nsgd_bytes": nsgd.cost.bytes,
            "nsgd_steps": nsgd.steps,
            "nsgd_lr": nsgd.candidate.lr,
            "saved_if_free": self.saved_if_free,
            "weighed": [_row(choice) for choice in self.weighed],
            "trials": dataclasses.asdict(self.effort),
            "seeds": self.seeds,
            "network": dataclasses.asdict(self.network),
        }
        finite: dict[str, Any] = _finite(content)
        return finite


def plan(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    network: Network | str | Mapping[str, Any] = "paper",
    goal: str = "time",
    methods: Sequence[str | Line] = FAMILY,
    learning_rates: Sequence[float] | None = None,
    target_loss: float | None = None,
    within: float = WITHIN,
    steps: int = 200,
    most_trials: int | None = None,
    rehearsals: int = 0,
    workers: int = 20,
    batch_size: int = 10,
    optimizer: str | OptimizerFactory = "sgd",
    optimizer_at: str | None = None,
    schedule: str = "constant",
    partition: Partition | str = "iid",
    seed: int = 0,
    device: str = "cpu",
    execution: Execution | None = None,
    eval_samples: int | None = EVAL_SAMPLES,
    trials: Trials | None = None,
    journal: Path | None = None,
    on_search: OnSearch | None = None,
) -> Plan:
    """Find the method and step size that reach NSGD's loss at the least time or bytes.

    network: what the time is for; a preset, a `Network` or settings of one.
    goal: `time` or `bytes`.
    methods: what to choose from, as text; `{H}`, `{r}` and `{message}` stand for several values.
        NSGD always runs too, and what `prlc.train` takes by default runs first if it is among them.
    learning_rates: the step sizes to choose from; found by doubling and halving by default.
    target_loss: a training loss; by default NSGD's lowest within `steps`, at its best step size.
    within: how close to NSGD's lowest loss is close enough; 0.01 is 1%.
    steps: of NSGD's run; no trial is longer than twice that.
    most_trials: pairs of method and step size to try: up to half of them of the default's line, a
        quarter next to the best. None: 320, or fewer for a model that computes for long.
    rehearsals: further seeds on which a candidate has to get to NSGD's loss, too; with two or more
        and a schedule, also be expected to on nine of ten others.
    optimizer_at: `server`, `workers`; None: on the server where a method allows it.
    schedule: `constant`, `cosine`, `step:EPOCHS:FACTOR`. Where the step size changes, a run counts
        as a whole, and its length is part of the search.
    eval_samples: of the training data, on which losses are measured; None: all.
    trials: those of an earlier plan with the same settings, so that plans for several networks
        share the training. All other settings are as in `prlc.train`.
    journal: a file that keeps the losses of all trials, so that the same plan, or one for another
        network, goes on from there.
    """
    check_choice("goal", goal, GOALS)
    if optimizer_at is not None:
        check_choice("optimizer_at", optimizer_at, PLACES)
    if most_trials is not None and (type(most_trials) is not int or most_trials < 1):
        raise ConfigError(f"A plan needs at least 1 trial, but most_trials is {most_trials!r}.")
    if type(rehearsals) is not int or rehearsals < 0:
        raise ConfigError(f"rehearsals must be a whole number, 0 or more, but is {rehearsals!r}.")
    if not (is_number(within) and 0 <= within < 1):
        raise ConfigError(
            f"within is a share of NSGD's loss, 0 or more and below 1, but is {within!r}."
        )
    if learning_rates is not None and not learning_rates:
        raise ConfigError("Give at least one learning rate to choose from, or none to find them.")
    for lr in learning_rates or ():
        parse_lr_schedule(schedule, lr)
    network, began = Network.of(network), time.perf_counter()
    config = Config(
        method=NSGD(),
        workers=workers,
        batch_size=batch_size,
        steps=steps,
        optimizer=optimizer,
        schedule=parse_lr_schedule(schedule, 1.0),
        partition=parse_partition(partition) if isinstance(partition, str) else partition,
        seed=seed,
        device=device,
        execution=execution,
        eval_samples=eval_samples,
    )
    own = Trials(model, loss, Dataset.of(data), config, schedule, journal)
    if trials is None:
        trials = own
    elif trials.about != own.about:
        raise ConfigError(
            "The trials are of a plan with other settings, or another model, loss or data: leave "
            "them out."
        )
    before = trials.steps_trained
    search = Search(
        candidates(methods),
        trials,
        Prices(trials, network, goal, optimizer_at),
        step_sizes=learning_rates,
        target=target_loss,
        within=within,
        rehearsals=rehearsals,
        on_search=on_search,
    )
    nsgd = search.nsgd
    weighed = search.run(most_trials or _affordable(trials))
    chosen = weighed[0]
    nsgd_job = trials.job(dataclasses.replace(nsgd.candidate, steps=nsgd.steps))
    chosen_job = trials.job(dataclasses.replace(chosen.candidate, steps=chosen.steps))
    return Plan(
        chosen=chosen,
        nsgd=nsgd,
        weighed=tuple(weighed),
        goal=goal,
        target_loss=search.target.loss,
        within=within,
        limit_seconds=Price(nsgd_job, infinitely_fast(network)).after(nsgd.steps).seconds,
        saved_if_free=saved_if_free(chosen_job, network, chosen.steps),
        effort=Effort(len(weighed), trials.steps_trained - before, time.perf_counter() - began),
        network=network,
        schedule=schedule,
        optimizer=optimizer,
        seeds=1 + rehearsals,
        trials=trials,
    )


def _affordable(trials: Trials) -> int:
    """How many trials of this model a plan begins with; the same on every machine."""
    job = trials.job(Candidate(NSGD(), "workers", 1.0, trials.steps))
    step = flops_per_step(job) * job.num_workers
    many = int(_OPERATIONS / (_TRAINED * trials.steps * max(1.0, step)))
    return min(_TRIALS, max(_FEWEST_TRIALS, many))


def _row(choice: Choice) -> dict[str, Any]:
    return {
        "method": str(choice.candidate.method),
        "lr": choice.candidate.lr,
        "optimizer_at": choice.candidate.optimizer_at,
        "steps": choice.steps,
        "seconds": choice.cost.seconds,
        "bytes": choice.cost.bytes,
        "loss": choice.loss,
        "reached": choice.reached,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
