"""From trials or bounds to rows, and from rows to a choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prlc.errors import ConfigError
from prlc.methods import PRLC
from prlc.planner.advice import Row
from prlc.planner.bounds import BoundAnswer, StepLimits
from prlc.planner.cost import NSGD_TWIN, Price, Work
from prlc.planner.search import LONGEST, Outcome, Search
from prlc.theory import Constants

__all__ = ["Task"]

_TIE = 1.05  # ratios whose time is within this of the fastest: the one that sends least is taken


@dataclass(frozen=True)
class Task:
    """What is asked, with what is known before any trial."""

    work: Work
    prices: dict[PRLC, Price]
    constants: Constants
    ratios: tuple[float, ...]
    rates: tuple[float, ...]
    fixed_rates: bool
    steps: int
    target: float | None

    def by_trials(self, search: Search) -> tuple[tuple[Row, ...], float]:
        """A row for each method, and the target loss."""
        start = float(search.trials(NSGD_TWIN, self.rates[0]).losses(0)[0])
        if self.target is not None and not self.target < start:
            raise ConfigError(
                f"The target loss {self.target:g} should be below {start:.4g}, the loss at the "
                "start: give a smaller one."
            )
        nsgd = search.nsgd(self.target)
        target = nsgd.lowest_loss if self.target is None else self.target
        if not target < start:
            raise ConfigError(
                f"No step size tried lowered the loss of {start:.4g} in {self.steps} steps of "
                f"NSGD ({_listed(self.rates)}). {self._admissible(1.0)}"
            )
        others = [search.at(m, target, nsgd) for m in self.prices if m != NSGD_TWIN]
        found = [nsgd, *others]
        if all(outcome.steps is None for outcome in found):
            lowest = min(outcome.lowest_loss for outcome in found)
            raise ConfigError(
                f"No trial reached the target loss {target:g} within {LONGEST * self.steps} steps; "
                f"the lowest was {lowest:.4g}. Give a higher target or more steps. "
                f"{self._admissible(min(self.ratios))}"
            )
        return tuple(self._row(outcome, nsgd.seconds) for outcome in found), target

    def by_bound(self, answers: Mapping[float, BoundAnswer]) -> tuple[Row, ...]:
        """A row for each method from the steps that a bound asks for."""
        nsgd = answers[1.0].seconds
        outcomes = []
        for method in self.prices:
            answer = answers[method.pull_ratio]
            known = math.isfinite(answer.steps)
            outcomes.append(
                Outcome(
                    method,
                    answer.lr,
                    answer.steps if known else None,
                    answer.seconds if known else None,
                    math.nan,
                    self.steps,
                )
            )
        return tuple(self._row(outcome, nsgd) for outcome in outcomes)

    def _row(self, outcome: Outcome, nsgd_seconds: float | None) -> Row:
        r, P, seconds = outcome.method.pull_ratio, self.work.num_workers, outcome.seconds
        steps = None if outcome.steps is None else math.ceil(outcome.steps)
        against = None
        if seconds is not None and nsgd_seconds is not None:
            against = seconds / nsgd_seconds if nsgd_seconds > 0 else 1.0
        return Row(
            pull_ratio=r,
            lr=outcome.lr,
            steps=steps,
            pulls_per_worker=None if steps is None else r * steps,
            bytes_up=None if steps is None else steps * P * self.work.bytes_up,
            bytes_down=None if steps is None else r * steps * P * self.work.bytes_down,
            seconds=seconds,
            against_nsgd=against,
            lowest_loss=None if math.isnan(outcome.lowest_loss) else outcome.lowest_loss,
            price=self.prices[outcome.method],
            limits=StepLimits.at(r, self.constants.smoothness),
        )

    def choose(self, rows: tuple[Row, ...]) -> Row:
        """The ratio asked for that is fastest, or sends least among those as good as that.

        NSGD, if none of them reached the target.
        """
        asked = [row for row in rows if row.pull_ratio in self.ratios and row.seconds is not None]
        if not asked:
            return rows[0]
        fastest = min(row.seconds or 0.0 for row in asked)
        equal = [row for row in asked if (row.seconds or 0.0) <= _TIE * fastest]
        return min(equal, key=lambda row: (row.bytes or 0.0, row.seconds or 0.0))

    def notes(self, rows: tuple[Row, ...], chosen: Row, tried: bool) -> tuple[str, ...]:
        """What a reader should know before relying on the plan."""
        notes: list[str] = []
        if self.fixed_rates:
            asked = [row for row in rows if row.pull_ratio in self.ratios]
            judged = chosen if chosen in asked else asked[0]
            said = judged.limits.judge(judged.lr, judged.pull_ratio)
            notes += [said] if said else []
        largest = self.rates[-1]
        if tried and not self.fixed_rates and largest in (chosen.lr, rows[0].lr):
            notes.append(
                f"The best step size of {'NSGD' if largest == rows[0].lr else 'the plan'} is the "
                f"largest one tried, {largest:.4g} = 2/L. Beyond it nothing is stable at the "
                "curvature measured; where that falls during training, more may work, for NSGD "
                "too: try it with --lr."
            )
        if chosen.pull_ratio == min(self.ratios) and len({*self.ratios}) > 1:
            notes.append(
                f"The smallest pull ratio considered, {chosen.pull_ratio:g}, won: a smaller one "
                "may be better still, try it with --ratio."
            )
        return tuple(notes)

    def _admissible(self, ratio: float) -> str:
        limits = StepLimits.at(ratio, self.constants.smoothness)
        return (
            f"The largest admissible step size is {limits.theorem1:.4g} by Theorem 1 at r = "
            f"{ratio:g}, {limits.proved:.4g} by the sharper bound; from {limits.stable:.4g} = 2/L "
            "on PRLC and SGD diverge on a quadratic of that curvature."
        )


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in rates)
