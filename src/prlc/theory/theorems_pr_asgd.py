"""What the paper compares PRLC with: PR (Theorem 3) and asynchronous SGD (Theorem 4).

Theorem 3 is in the form that its proof gives; `proved.pr_bound` covers every pull ratio.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from prlc.errors import ConfigError

from .quantities import (
    Array,
    Constants,
    Number,
    count_array,
    iterations_until,
    positive_array,
    pull_ratio_array,
    result,
    step_size_array,
)

# ---- Theorem 3: PR, pulling reduction without compensation --------------------------------------


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
    """H in the proof of Theorem 3; the step size must keep it at or below 0."""
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
    # Near 1/2 the difference cancels; use its Taylor series in d.
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
    """Theorem 3: mean_t E|grad F(w_t)|^2 <= 2 Delta/(eta T) + 2 L eta sigma^2/P + bracket term.

    The last term is 4 eta^2 L^2 sigma^2/P [bracket]; the paper prints L for its L^2.
    """
    r = _above_half(pull_ratio)
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, theorem3_step_limit(r, L), "Theorem 3")
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    start = 2 * constants.initial_gap / (eta * T)
    noise = 2 * L * eta * variance / P
    return result(start + noise + 4 * eta**2 * L**2 * variance / P * theorem3_bracket(r, T))


def theorem3_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """A T that brings the bound of Theorem 3 down to `target`; inf if none is known.

    Takes the bracket at its limit (1-r)/(2r-1), which it never exceeds: a sufficient T, not
    always the smallest.
    """
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, theorem3_step_limit(pull_ratio, L), "Theorem 3")
    r, P = np.asarray(pull_ratio, float), count_array("num_workers", num_workers)
    drift = 4 * eta**2 * L**2 * variance / P * (1 - r) / (2 * r - 1)
    floor = 2 * L * eta * variance / P + drift
    return iterations_until(target, 2 * constants.initial_gap / eta, floor)


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


# ---- Theorem 4: asynchronous SGD (Theorem 1 of Lian et al., 2015) -------------------------------
# One update is one gradient of one worker, so P workers that each finish one gradient make P
# updates where PRLC makes one. `asgd_equal_work_bound` compares at equal numbers of gradients.


def asgd_step_limit(staleness: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The root of L eta + 2 L^2 S^2 eta^2 = 1: 2 / (L (1 + sqrt(1 + 8 S^2)))."""
    S = count_array("staleness", staleness)
    L = positive_array("smoothness", smoothness)
    return result(2 / (L * (1 + np.sqrt(1 + 8 * S**2))))


def asgd_bound(
    step_size: ArrayLike,
    staleness: ArrayLike,
    num_updates: ArrayLike,
    constants: Constants,
) -> Number:
    """Equation (ASGD) of Theorem 4: 2 Delta/(K eta) + eta (C_0 + C_1 S eta).

    C_0 = L sigma^2, C_1 = 2 L^2 sigma^2; the paper sets the staleness S to P. K counts single
    gradients.
    """
    eta, floor = _asgd_floor(step_size, staleness, constants)
    K = count_array("num_updates", num_updates)
    return result(2 * constants.initial_gap / (eta * K) + floor)


def asgd_updates(
    target: ArrayLike, step_size: ArrayLike, staleness: ArrayLike, constants: Constants
) -> Number:
    """The smallest K, in single gradients, with an ASGD bound of at most `target`, or inf."""
    eta, floor = _asgd_floor(step_size, staleness, constants)
    return iterations_until(target, 2 * constants.initial_gap / eta, floor)


def asgd_equal_work_step_limit(num_workers: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The limit for P updates of eta/P together; between 1/(2L) and 1/(sqrt(2) L)."""
    P = count_array("num_workers", num_workers)
    return result(P * asgd_step_limit(P, smoothness))


def asgd_equal_work_bound(
    step_size: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """ASGD after as many gradients as T iterations of PRLC: K = P T updates of eta/P each.

    2 Delta/(eta T) + L eta sigma^2/P + 2 L^2 eta^2 sigma^2/P: both noise terms fall with P.
    """
    limit = asgd_equal_work_step_limit(num_workers, constants.smoothness)
    eta = step_size_array(step_size, limit, "The bound of ASGD at equal work")
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    return asgd_bound(eta / P, P, P * T, constants)


def _asgd_floor(
    step_size: ArrayLike, staleness: ArrayLike, constants: Constants
) -> tuple[Array, Array]:
    """The checked step size, and the part of the bound that more updates do not lower."""
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, asgd_step_limit(staleness, L), "The bound of ASGD")
    S = count_array("staleness", staleness)
    return eta, eta * L * variance * (1 + 2 * L * S * eta)
