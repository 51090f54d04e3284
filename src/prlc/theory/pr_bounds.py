"""PR, pulling reduction without compensation: Theorem 3 as derived, and a bound for every r."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from prlc.errors import ConfigError

from ._inputs import (
    Array,
    Number,
    count_array,
    positive_array,
    pull_ratio_array,
    result,
    step_size_array,
)
from .constants import Constants


def theorem3_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The root of H = 0 in the proof of Theorem 3: 1 / (L (1 + sqrt((3-2r)/(2r-1)))), r > 1/2."""
    r = _above_half(pull_ratio)
    L = positive_array("smoothness", smoothness)
    return result(1 / (L * (1 + np.sqrt((3 - 2 * r) / (2 * r - 1)))))


def theorem3_h(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """H of the proof of Theorem 3, the factor that the step size must keep at or below 0."""
    eta = positive_array("step_size", step_size)
    r = _above_half(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    return result((2 * eta**3 * L**2 * (1 - r) / (2 * r - 1) + L * eta**2 - eta / 2) / P**2)


def theorem3_bracket(pull_ratio: ArrayLike, num_iterations: ArrayLike) -> Number:
    """The square bracket of Theorem 3, r >= 1/2; at r = 1/2 its limit, (T-1)/4.

    Equal to (1/(2T)) sum_{k=1..T-1} (T-k) (2-2r)^k.
    """
    r = _above_half(pull_ratio, or_equal=True)
    r, T = np.broadcast_arrays(r, count_array("num_iterations", num_iterations))
    d = 2 * r - 1
    near = d * T < 1e-2
    with np.errstate(divide="ignore", invalid="ignore"):
        survived = -np.expm1(T * np.log1p(-np.minimum(d, 1.0))) / (d * T)
        far_value = (1 - r) / d * (1 - survived)
    # Near 1/2 the difference cancels; this is its Taylor series in d.
    series = np.zeros_like(d)
    term = np.ones_like(d)
    for n in range(1, 7):
        term = -term * (T - n) * d / (n + 1)
        series -= term
    with np.errstate(divide="ignore", invalid="ignore"):
        near_value = np.where(d > 0, (1 - r) / d * series, (T - 1) / 4)
    return result(np.where(near, near_value, far_value))


def theorem3_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """Theorem 3 as derived: the noise term carries L^2, where the paper prints L."""
    r = _above_half(pull_ratio)
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, theorem3_step_limit(r, L), "Theorem 3")
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    start = 2 * constants.initial_gap / (eta * T)
    noise = 2 * L * eta * variance / P
    return result(start + noise + 4 * eta**2 * L**2 * variance / P * theorem3_bracket(r, T))


def pr_kappa(pull_ratio: ArrayLike) -> Number:
    """kappa = q/(1 - sqrt q)^2, q = 1-r: how much PR amplifies the steps it misses.

    About 4/r^2 for small r, 0 at r = 1.
    """
    r = pull_ratio_array(pull_ratio)
    q = 1 - r
    return result(q * (1 + np.sqrt(q)) ** 2 / r**2)


def pr_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The root of 1 - L eta - kappa L^2 eta^2 = 0: 2 / (L (1 + sqrt(1 + 4 kappa))), any r."""
    L = positive_array("smoothness", smoothness)
    return result(2 / (L * (1 + np.sqrt(1 + 4 * np.asarray(pr_kappa(pull_ratio))))))


def pr_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """PR for every r in (0, 1], without G: no r > 1/2 is needed.

    2 Delta/(eta T) + L eta sigma^2/P + kappa eta^2 L^2 sigma^2/P, from
    E|e_t|^2 = (1-r) E|e_{t-1} + eta gbar|^2 by Minkowski's inequality and a convolution bound.
    """
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, pr_step_limit(pull_ratio, L), "The bound of PR")
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    start = 2 * constants.initial_gap / (eta * T)
    noise = (1 + pr_kappa(pull_ratio) * eta * L) * L * eta * variance / P
    return result(start + noise)


def _above_half(pull_ratio: ArrayLike, *, or_equal: bool = False) -> Array:
    r = pull_ratio_array(pull_ratio)
    fits = (r >= 0.5) if or_equal else (r > 0.5)
    if not np.all(fits):
        expected = "at least 0.5" if or_equal else "above 0.5"
        raise ConfigError(
            f"Theorem 3 expects a pull_ratio {expected}, but it is {r[~fits].flat[0]:.6g}: use "
            "pr_bound and pr_step_limit, which hold for every pull ratio."
        )
    return r
