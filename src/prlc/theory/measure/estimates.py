"""From measurements to constants: a value, an interval and an explanation for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prlc.errors import ConfigError
from prlc.theory.measure.curvature import End
from prlc.theory.measure.survey import MeasuredPoint, Point, Survey, mean_and_error
from prlc.theory.quantities import Constants

__all__ = ["Cost", "Estimate", "MeasuredConstants"]

_QUANTILE = 0.99


@dataclass(frozen=True)
class Estimate:
    """A number, an interval around it (about 95%, unless `how` names a bound), and its origin."""

    value: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Cost:
    """What the measurement cost.

    `gradients` counts single-sample gradients; a Hessian-vector product of one sample counts as
    two, a loss without gradient as a third.
    """

    gradients: int
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class MeasuredConstants:
    """The constants of one problem at one batch size; `notes` are cautions worth printing."""

    smoothness: Estimate
    variance: Estimate
    gradient_bound: Estimate
    gradient_quantile: Estimate
    """The norm that 99% of minibatch gradients stay below."""
    initial_gap: Estimate
    strong_convexity: Estimate | None
    batch_size: int
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    cost: Cost

    def constants(self) -> Constants:
        """The values as the formulas of prlc.theory take them.

        Strong convexity is None if its interval reaches down to zero.
        """
        mu = self.strong_convexity
        return Constants(
            smoothness=self.smoothness.value,
            variance=self.variance.value,
            gradient_bound=self.gradient_bound.value,
            initial_gap=self.initial_gap.value,
            strong_convexity=mu.value if mu is not None and mu.low > 0 else None,
        )

    def table(self) -> list[tuple[str, str, str, str]]:
        """Rows of (name, value, interval, how), ready to print."""
        named = [
            ("smoothness L", self.smoothness),
            (f"variance sigma^2 at batch size {self.batch_size}", self.variance),
            ("gradient bound G", self.gradient_bound),
            ("99% quantile of gradient norms", self.gradient_quantile),
            ("initial gap Delta", self.initial_gap),
        ]
        if self.strong_convexity is not None:
            named.append(("strong convexity mu", self.strong_convexity))
        return [(name, f"{e.value:.4g}", f"{e.low:.4g} to {e.high:.4g}", e.how)
                for name, e in named]  # fmt: skip


# ---- One estimate for each constant -------------------------------------------------------------


def smoothness(survey: Survey) -> Estimate:
    """L: the largest absolute Hessian eigenvalue seen (Assumption 1)."""
    at = max(survey.points, key=lambda at: abs(at.point.curvature))
    end = at.spectrum.largest
    low, high = _interval(survey, at, end, math.copysign(1.0, end.value))
    sign = "negative" if end.value < 0 else "positive"
    how = (
        f"largest Hessian eigenvalue ({sign}), found at {at.point.name}, {_how_many(survey)}; "
        "the supremum over all models may be larger"
    )
    return Estimate(abs(end.value), max(low, 0.0), high, how + survey.subset.note)


def strong_convexity(survey: Survey) -> Estimate:
    """mu: the smallest Hessian eigenvalue seen; negative where the loss is not convex."""
    at = min(survey.points, key=lambda at: at.point.lowest_curvature)
    end = at.spectrum.lowest
    low, high = _interval(survey, at, end, -1.0)
    how = (
        f"smallest Hessian eigenvalue, found at {at.point.name}, {_how_many(survey)}; "
        "the infimum over all models may be smaller"
    )
    return Estimate(end.value, -high, -low, how + survey.subset.note)


def variance(survey: Survey) -> Estimate:
    """sigma^2: the largest variance of a minibatch gradient seen (Assumption 5)."""
    at = max(survey.points, key=lambda at: at.noise.variance)
    value, error = at.noise.variance, at.noise.error
    how = (
        f"{len(survey.subset.samples)} single-sample gradients; largest at {at.point.name}, "
        f"{_how_many(survey)}; batches without repeats"
    )
    # Symmetric in the logarithm: a few large gradients skew the error to one side.
    factor = math.exp(2 * error / value) if value > 0 else 1.0
    return Estimate(value, value / factor, value * factor, how)


def gradient_bound(survey: Survey) -> Estimate:
    """G: the largest norm of a minibatch gradient seen (Assumption 3)."""
    norms = _norms(survey)
    seen, high = float(norms.max()), math.inf
    how = f"largest of {len(norms)} minibatch gradients seen, a lower estimate of a supremum"
    if survey.subset.share == 1:
        high = max(seen, *(at.noise.ceiling for at in survey.points))
        how += "; no batch exceeds the upper end at the models measured"
    return Estimate(seen, seen, high, how)


def gradient_quantile(survey: Survey) -> Estimate:
    """The norm that 99% of minibatch gradients stay below, with an interval from ranks."""
    norms, q = _norms(survey), _QUANTILE
    slack = 2 * math.sqrt(q * (1 - q) / len(norms))
    value, low, high = np.quantile(norms, [q, max(q - slack, 0.0), min(q + slack, 1.0)])
    how = f"of {len(norms)} minibatch gradients seen; interval from neighbouring ranks"
    return Estimate(float(value), float(low), float(high), how)


def initial_gap(survey: Survey, lower_bound: float | None, mu: Estimate | None) -> Estimate:
    """Delta = F(w_1) - F* (Assumption 2): at least the fall of the loss in the short run.

    At most what `lower_bound` leaves. With strong convexity F* is also at least
    F(w) - |grad F(w)|^2 / (2 mu), at any w.
    """
    parts, run = survey.parts, survey.trajectory
    means = [mean_and_error(losses, parts)[0] for losses in run.losses]
    best = int(np.argmin(means))
    if lower_bound is not None and means[best] < lower_bound:
        raise ConfigError(
            f"The loss should never fall below lower_bound={lower_bound:.6g}, but it is "
            f"{means[best]:.6g} at step {run.steps[best]}: pass a lower bound of this loss, "
            "or None."
        )
    left = 2 * math.sqrt(1 - survey.subset.share)
    gap, error = mean_and_error(run.losses[0] - run.losses[best], parts)
    high, why = math.inf, "nothing is known to bound the loss from below"
    if lower_bound is not None:
        first, first_error = mean_and_error(run.losses[0], parts)
        high = first + left * first_error - lower_bound
        why = f"upper end: the loss is never below {lower_bound:.6g}"
    if mu is not None and mu.low > 0:
        _, gradient = survey.objective.gradient(run.models[best], parts)
        highest = gap + left * error + float(gradient @ gradient) / (2 * mu.low)
        if highest < high:
            high, why = highest, "upper end: from mu and the gradient left at the last model"
    how = (
        f"fall of the loss in {run.steps[-1]} SGD steps, a lower estimate: the minimum may be "
        f"deeper; {why}"
    )
    return Estimate(max(gap, 0.0), max(gap - left * error, 0.0), high, how + survey.subset.note)


def _interval(survey: Survey, at: MeasuredPoint, end: End, sign: float) -> tuple[float, float]:
    """An interval for the largest eigenvalue of sign * H, with H over all training samples.

    If only a share f of the samples was used, their largest eigenvalue is too high on average,
    because its vector v fits them. v'Hv over all samples, with the part of the unused ones
    estimated from fresh samples, is too low.
    """
    top, f = sign * end.value, survey.subset.share
    rounding = 32 * survey.objective.rounding * abs(at.point.curvature)
    low, high = top - rounding, top + end.residual + rounding
    if f < 1:
        inside = sign * survey.objective.curvatures(at.w, end.vector, survey.parts)
        _, error = mean_and_error(inside, survey.parts)
        high += 2 * error * math.sqrt(1 - f)
        outside = sign * survey.objective.curvatures(at.w, end.vector, survey.rest)
        fresh, error = mean_and_error(outside, survey.rest)
        error *= math.sqrt(1 - survey.subset.rest_share)
        low = min(low, f * top + (1 - f) * (fresh - 2 * error))
    return low, high


def _norms(survey: Survey) -> NDArray[np.float64]:
    return np.concatenate([survey.trajectory.norms, *(at.noise.norms for at in survey.points)])


def _how_many(survey: Survey) -> str:
    count = len(survey.points)
    return "the only model measured" if count == 1 else f"of {count} models measured"
