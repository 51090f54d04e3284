"""Theorem 5: PRLC on a strongly convex objective, as it follows from the paper's own lemmas.

The optimality gap falls by 1 - eta mu a step, down to a floor of D/(eta mu).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._inputs import Array, Number, count_array, positive_array, result, step_size_array
from .constants import Constants
from .prlc_bounds import theorem1_a, theorem1_b, theorem1_step_limit
from .proved import bounded_spread, convex_spread, smooth_step_limit


def theorem5_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """r / (2 L (2-r)), as in Theorem 1: the condition H <= 0 is B <= 0."""
    return theorem1_step_limit(pull_ratio, smoothness)


def theorem5_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D = eta A, what one step adds to the gap at most."""
    eta = positive_array("step_size", step_size)
    return result(eta * theorem1_a(eta, pull_ratio, num_workers, constants))


def theorem5_h(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """H = B of Theorem 1, the factor that the step size must keep at or below 0."""
    return theorem1_b(step_size, pull_ratio, num_workers, smoothness)


def theorem5_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """Theorem 5: E[F(w_{T+1}) - F*] <= (1 - eta mu)^T (Delta - D/(eta mu)) + D/(eta mu)."""
    limit = theorem5_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 5")
    D = theorem5_d(eta, pull_ratio, num_workers, constants)
    return result(gap_after(eta, D, num_iterations, constants))


def strongly_convex_bounded_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D with bounded gradients, for any eta <= 1/L; below that of Theorem 5."""
    V = bounded_spread(step_size, pull_ratio, num_workers, constants)
    return _proved_d(step_size, V, num_workers, constants)


def strongly_convex_iid_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D with IID data, for any eta <= 1/L; needs no G."""
    V = convex_spread(step_size, pull_ratio, num_workers, constants)
    return _proved_d(step_size, V, num_workers, constants)


def strongly_convex_bounded_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """The gap after T steps with bounded gradients."""
    D = strongly_convex_bounded_d(step_size, pull_ratio, num_workers, constants)
    return result(gap_after(step_size, D, num_iterations, constants))


def strongly_convex_iid_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """The gap after T steps with IID data."""
    D = strongly_convex_iid_d(step_size, pull_ratio, num_workers, constants)
    return result(gap_after(step_size, D, num_iterations, constants))


def gap_after(
    step_size: ArrayLike, D: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    """gap <- (1 - eta mu) gap + D, T times, from Delta."""
    eta = positive_array("step_size", step_size)
    T = count_array("num_iterations", num_iterations)
    floor = np.asarray(D) / (eta * constants.mu)
    after: Array = (1 - eta * constants.mu) ** T * (constants.initial_gap - floor) + floor
    return after


def _proved_d(
    step_size: ArrayLike, V: Array, num_workers: ArrayLike, constants: Constants
) -> Number:
    """L eta^2 sigma^2/(2P) + (eta/2) L^2 V: one step of the descent behind `proved.py`."""
    statement = "The strongly convex bound"
    eta = step_size_array(step_size, smooth_step_limit(constants.smoothness), statement)
    P = count_array("num_workers", num_workers)
    L = constants.smoothness
    return result(L * eta**2 * constants.variance / (2 * P) + eta / 2 * L**2 * V)
