"""The planner itself: measure the problem, price the candidates, try them, choose one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from prlc.data import Dataset, Partition, parse_partition
from prlc.engines import Execution, Loss
from prlc.errors import ConfigError
from prlc.methods import PRLC
from prlc.network import Network
from prlc.optim.schedules import Constant
from prlc.planner import bounds
from prlc.planner.advice import Advice, Effort, Row
from prlc.planner.bounds import BoundAnswer, StepLimits
from prlc.planner.cost import NSGD_TWIN, Price, StepClock, Work, price
from prlc.planner.trials import MAX_STEPS, BestRate, OnTrial, Search, Trials
from prlc.runs.config import Config
from prlc.theory import Constants
from prlc.theory.measure import MeasuredConstants, measure_constants

#: The pull ratios considered by default.
RATIOS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)

_EVALUATIONS = 40  # of NSGD's trial
_MIN_STEPS = 8
_ALIGNED = PRLC(1.0, every=10)  # all workers push and pull together
_TIE = 1.05  # of the ratios within this factor of the fastest, the one that sends least wins

OnMeasure = Callable[[str, int, int], None]
"""Called with the name of a measurement, how much of it is done, and its most possible length."""


# ---- the entry points ----------------------------------------------------------------------------


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
    execution: Execution | None = None,
    eval_samples: int | None = 10_000,
) -> Trials:
    """Trial runs to share between calls of `advise` with the same settings."""
    config = Config(
        workers=workers,
        batch_size=batch_size,
        steps=steps,
        partition=parse_partition(partition) if isinstance(partition, str) else partition,
        seed=seed,
        device=device,
        execution=execution,
        eval_samples=eval_samples,
    )
    if steps < _MIN_STEPS:
        raise ConfigError(
            f"A plan needs trials of at least {_MIN_STEPS} steps, but steps is {steps}."
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
    execution: Execution | None = None,
    eval_samples: int | None = 10_000,
    trials: Trials | None = None,
    on_trial: OnTrial | None = None,
    on_measure: OnMeasure | None = None,
) -> Advice:
    """Find the pull ratio and step size of PRLC that reach a loss soonest on a network.

    ratios: the pull ratios to choose from. NSGD always runs too, as the baseline.
    learning_rates: the step sizes to choose from; 2/L, 1/L, ... down to 1/(16 L) by default.
    target_loss: a training loss; NSGD's lowest within `steps` steps, at its best step size, by
        default.
    constants: known or already measured; measured here by default.
    use_trials: False asks the bounds instead, which are loose.
    trials: from `make_trials` with the same settings, so that plans for several networks share
        the training. All other settings are as in `prlc.train`.
    """
    data, network = Dataset.of(data), Network.of(network)
    ratios = tuple(float(PRLC(ratio).pull_ratio) for ratio in ratios)
    given_rates = None if learning_rates is None else tuple(Constant(r).lr for r in learning_rates)
    if not ratios or given_rates == ():
        raise ConfigError("Give at least one pull ratio and one learning rate to choose from.")
    if target_loss is not None and not use_trials:
        raise ConfigError(
            "A target loss needs trials: the bounds are about gradients, not losses. Allow trials "
            "or leave the target out."
        )
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
        execution=execution,
        eval_samples=eval_samples,
    )
    trials = trials or own
    _check_shared(trials.config, own.config)
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
    candidates = Candidates(
        work=work,
        prices={method: price(network, work, method, seed) for method in methods},
        constants=known,
        ratios=ratios,
        rates=tuple(sorted({*(given_rates or bounds.learning_rates(known.smoothness))})),
        rates_given=given_rates is not None,
        steps=steps,
        target=target_loss,
    )
    per_step = {method.pull_ratio: p.seconds_per_step for method, p in candidates.prices.items()}
    theory = {name: bounds.answers(name, per_step, workers, steps, known) for name in bounds.BOUNDS}
    effort: Effort | None = None
    if use_trials:
        began, before = time.perf_counter(), trials.steps_trained
        clocks = {method: StepClock(network, work, method, seed) for method in methods}
        search = Search(trials, clocks, candidates.rates, steps, on_trial)
        rows, target_loss = candidates.by_trials(search)
        took = time.perf_counter() - began
        effort = Effort(len(methods) * len(candidates.rates), trials.steps_trained - before, took)
    else:
        name = "bounded_gradients"
        answers = bounds.answers(name, per_step, workers, steps, known, given_rates)
        rows = candidates.by_bound(answers)
    recommended = candidates.choose(rows)
    return Advice(
        recommended=recommended,
        rows=rows,
        target_loss=target_loss,
        target_given=candidates.target is not None,
        nsgd_steps=steps,
        effort=effort,
        constants=known,
        measured=measured,
        theory=theory,
        learning_rates=candidates.rates,
        aligned_step_seconds=price(network, work, _ALIGNED, seed).seconds_per_step,
        workers=workers,
        network=network,
        notes=candidates.notes(rows, recommended, use_trials),
    )


def _check_shared(shared: Config, own: Config) -> None:
    """Refuse to share trials that were made with other settings."""
    if shared != own:
        theirs, ours = shared.as_json(), own.as_json()
        key = next((k for k in ours if theirs[k] != ours[k]), "execution")
        raise ConfigError(
            f"The shared trials have {key} = {theirs.get(key)}, but the plan has {ours.get(key)}: "
            "make them anew with the same settings."
        )


# ---- from candidates to a choice -----------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """The pull ratios and step sizes to choose from, with all that is known before any trial."""

    work: Work
    prices: dict[PRLC, Price]
    constants: Constants
    ratios: tuple[float, ...]
    rates: tuple[float, ...]
    rates_given: bool
    steps: int
    target: float | None

    def by_trials(self, search: Search) -> tuple[tuple[Row, ...], float]:
        """A row per method, and the target loss."""
        start = float(search.trials(NSGD_TWIN, self.rates[0]).losses(0)[0])
        if self.target is not None and not self.target < start:
            raise ConfigError(
                f"The target loss {self.target:g} should be below {start:.4g}, the loss at the "
                "start: give a smaller one."
            )
        nsgd = search.nsgd(self.target)
        target = nsgd.lowest_loss if self.target is None else self.target
        if not target < start:
            tried = ", ".join(f"{rate:.4g}" for rate in self.rates)
            raise ConfigError(
                f"No step size tried lowered the loss of {start:.4g} in {self.steps} steps of "
                f"NSGD ({tried}). {self._admissible(1.0)}"
            )
        found = [nsgd, *(search.at(m, target, nsgd) for m in self.prices if m != NSGD_TWIN)]
        if all(best.steps is None for best in found):
            lowest = min(best.lowest_loss for best in found)
            raise ConfigError(
                f"No trial reached the target loss {target:g} within {MAX_STEPS * self.steps} "
                f"steps; the lowest was {lowest:.4g}. Give a higher target or more steps. "
                f"{self._admissible(min(self.ratios))}"
            )
        return tuple(self._row(best, nsgd.seconds) for best in found), target

    def by_bound(self, answers: Mapping[float, BoundAnswer]) -> tuple[Row, ...]:
        """A row per method, from the steps that a bound demands."""
        nsgd_seconds = answers[1.0].seconds
        rows = []
        for method in self.prices:
            answer = answers[method.pull_ratio]
            steps = seconds = None
            if math.isfinite(answer.steps):
                steps, seconds = answer.steps, answer.seconds
            rows.append(
                self._row(BestRate(method, answer.lr, steps, seconds, math.nan), nsgd_seconds)
            )
        return tuple(rows)

    def _row(self, best: BestRate, nsgd_seconds: float | None) -> Row:
        r, P, seconds = best.method.pull_ratio, self.work.num_workers, best.seconds
        steps = None if best.steps is None else math.ceil(best.steps)
        against = None
        if seconds is not None and nsgd_seconds is not None:
            against = seconds / nsgd_seconds if nsgd_seconds > 0 else 1.0
        return Row(
            pull_ratio=r,
            lr=best.lr,
            steps=steps,
            pulls_per_worker=None if steps is None else r * steps,
            bytes_up=None if steps is None else steps * P * self.work.bytes_up,
            bytes_down=None if steps is None else r * steps * P * self.work.bytes_down,
            seconds=seconds,
            against_nsgd=against,
            lowest_loss=None if math.isnan(best.lowest_loss) else best.lowest_loss,
            price=self.prices[best.method],
            limits=StepLimits.at(r, self.constants.smoothness),
        )

    def choose(self, rows: tuple[Row, ...]) -> Row:
        """The fastest ratio, or the one that sends least among those about as fast.

        NSGD, if no ratio reached the target.
        """
        asked = [row for row in rows if row.pull_ratio in self.ratios and row.seconds is not None]
        if not asked:
            return rows[0]
        fastest = min(row.seconds or 0.0 for row in asked)
        tied = [row for row in asked if (row.seconds or 0.0) <= _TIE * fastest]
        return min(tied, key=lambda row: (row.bytes or 0.0, row.seconds or 0.0))

    def notes(self, rows: tuple[Row, ...], chosen: Row, tried: bool) -> tuple[str, ...]:
        """Caveats."""
        notes: list[str] = []
        if self.rates_given:
            asked = [row for row in rows if row.pull_ratio in self.ratios]
            judged = chosen if chosen in asked else asked[0]
            warning = judged.limits.judge(judged.lr, judged.pull_ratio)
            notes += [warning] if warning else []
        largest = self.rates[-1]
        if tried and not self.rates_given and largest in (chosen.lr, rows[0].lr):
            notes.append(
                f"The best step size of {'NSGD' if largest == rows[0].lr else 'the plan'} is the "
                f"largest one tried, {largest:.4g} = 2/L. No larger one is stable at the measured "
                "curvature; if that falls during training, larger ones may work, for NSGD too: "
                "try them with --lr."
            )
        if chosen.pull_ratio == min(self.ratios) and len({*self.ratios}) > 1:
            notes.append(
                f"The smallest pull ratio considered, {chosen.pull_ratio:g}, won: a still smaller "
                "one may be better, try it with --ratio."
            )
        return tuple(notes)

    def _admissible(self, ratio: float) -> str:
        limits = StepLimits.at(ratio, self.constants.smoothness)
        return (
            f"The largest admissible step size is {limits.theorem1:.4g} by Theorem 1 at r = "
            f"{ratio:g}, {limits.proved:.4g} by the sharper bound; from {limits.stable:.4g} = 2/L "
            "on, PRLC and SGD diverge on a quadratic of that curvature."
        )
