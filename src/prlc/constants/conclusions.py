"""From measurements to constants: a value, an interval and a sentence for each."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from prlc.constants.estimates import Estimate
from prlc.constants.lanczos import End
from prlc.constants.sampling import mean_and_error
from prlc.constants.survey import Place, Survey
from prlc.errors import ConfigError

_QUANTILE = 0.99


def smoothness(survey: Survey) -> Estimate:
    """L: the largest absolute eigenvalue of the Hessian seen (Assumption 1)."""
    place = max(survey.places, key=lambda place: abs(place.point.curvature))
    end = place.spectrum.largest
    low, high = _interval(survey, place, end, math.copysign(1.0, end.value))
    sign = "negative" if end.value < 0 else "positive"
    how = (
        f"largest Hessian eigenvalue ({sign}), found at {place.point.name}, {_of_all(survey)}; "
        "the supremum over all models may be larger"
    )
    return Estimate(abs(end.value), max(low, 0.0), high, how + survey.subset.said)


def strong_convexity(survey: Survey) -> Estimate:
    """mu: the smallest eigenvalue of the Hessian seen; negative where it is not convex."""
    place = min(survey.places, key=lambda place: place.point.lowest_curvature)
    end = place.spectrum.lowest
    low, high = _interval(survey, place, end, -1.0)
    how = (
        f"smallest Hessian eigenvalue, found at {place.point.name}, {_of_all(survey)}; "
        "the infimum over all models may be smaller"
    )
    return Estimate(end.value, -high, -low, how + survey.subset.said)


def variance(survey: Survey) -> Estimate:
    """sigma^2: the largest variance of a minibatch gradient seen (Assumption 5)."""
    place = max(survey.places, key=lambda place: place.noise.variance)
    value, error = place.noise.variance, place.noise.error
    how = (
        f"{len(survey.subset.samples)} single-sample gradients; largest at {place.point.name}, "
        f"{_of_all(survey)}; batches without repeats"
    )
    # Symmetric in the logarithm: few large gradients make the error skew to one side.
    factor = math.exp(2 * error / value) if value > 0 else 1.0
    return Estimate(value, value / factor, value * factor, how)


def gradient_bound(survey: Survey) -> Estimate:
    """G: the largest norm of a minibatch gradient seen (Assumption 3)."""
    norms = _norms(survey)
    seen, high = float(norms.max()), math.inf
    how = f"largest of {len(norms)} minibatch gradients seen, a lower estimate of a supremum"
    if survey.subset.share == 1:
        high = max(seen, *(place.noise.ceiling for place in survey.places))
        how += "; no batch exceeds the upper end at the models measured"
    return Estimate(seen, seen, high, how)


def gradient_quantile(survey: Survey) -> Estimate:
    """The norm that 99% of minibatch gradients stay below, with its binomial ranks."""
    norms, q = _norms(survey), _QUANTILE
    slack = 2 * math.sqrt(q * (1 - q) / len(norms))
    value, low, high = np.quantile(norms, [q, max(q - slack, 0.0), min(q + slack, 1.0)])
    how = f"of {len(norms)} minibatch gradients seen; interval from neighbouring ranks"
    return Estimate(float(value), float(low), float(high), how)


def initial_gap(survey: Survey, lower_bound: float | None, mu: Estimate | None) -> Estimate:
    """Delta = F(w_1) - F* (Assumption 2): at least the fall seen, at most what can be had.

    With strong convexity F* is at least F(w) - |grad F(w)|^2 / (2 mu), at any w.
    """
    parts, path = survey.parts, survey.path
    means = [mean_and_error(losses, parts)[0] for losses in path.losses]
    best = int(np.argmin(means))
    if lower_bound is not None and means[best] < lower_bound:
        raise ConfigError(
            f"The loss should never fall below lower_bound={lower_bound:.6g}, but it is "
            f"{means[best]:.6g} at step {path.steps[best]}: pass a lower bound of this loss, "
            "or None."
        )
    left = 2 * math.sqrt(1 - survey.subset.share)
    gap, error = mean_and_error(path.losses[0] - path.losses[best], parts)
    high, why = math.inf, "nothing is known to bound the loss from below"
    if lower_bound is not None:
        first, first_error = mean_and_error(path.losses[0], parts)
        high = first + left * first_error - lower_bound
        why = f"upper end: the loss is never below {lower_bound:.6g}"
    if mu is not None and mu.low > 0:
        _, gradient = survey.objective.gradient(path.models[best], parts)
        highest = gap + left * error + float(gradient @ gradient) / (2 * mu.low)
        if highest < high:
            high, why = highest, "upper end: from mu and the gradient left at the last model"
    how = (
        f"fall of the loss in {path.steps[-1]} SGD steps, a lower estimate: the minimum may be "
        f"deeper; {why}"
    )
    return Estimate(max(gap, 0.0), max(gap - left * error, 0.0), high, how + survey.subset.said)


def _interval(survey: Survey, place: Place, end: End, sign: float) -> tuple[float, float]:
    """An interval for the largest eigenvalue of sign * H, H over all training samples.

    If only a share f of them was used: the largest eigenvalue over those is too high on average,
    as its vector v fits them; and v'Hv over all samples, with the part of the others estimated
    from fresh ones, is too low.
    """
    top, f = sign * end.value, survey.subset.share
    rounding = 32 * survey.objective.rounding * abs(place.point.curvature)
    low, high = top - rounding, top + end.residual + rounding
    if f < 1:
        inside = sign * survey.objective.curvatures(place.w, end.vector, survey.parts)
        _, error = mean_and_error(inside, survey.parts)
        high += 2 * error * math.sqrt(1 - f)
        outside = sign * survey.objective.curvatures(place.w, end.vector, survey.rest)
        fresh, error = mean_and_error(outside, survey.rest)
        error *= math.sqrt(1 - survey.subset.rest_share)
        low = min(low, f * top + (1 - f) * (fresh - 2 * error))
    return low, high


def _norms(survey: Survey) -> NDArray[np.float64]:
    return np.concatenate([survey.path.norms, *(place.noise.norms for place in survey.places)])


def _of_all(survey: Survey) -> str:
    count = len(survey.places)
    return "the only model measured" if count == 1 else f"of {count} models measured"
