"""Theorems 1 and 2: PRLC on a smooth, possibly non-convex objective.

The algebra of the paper, in forms that stay exact up to and including r = 1. The sharper
statements, with complete proofs, are in `proved.py`; each of them implies Theorem 1.
"""

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


def theorem1_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The largest step size of Theorem 1: r / (2 L (2-r)), the root of B = 0.

    Equal to the printed root, because r^2 + 8 (1-r)(2-r) = (4-3r)^2, without its 0/0 at r = 1.
    """
    r = pull_ratio_array(pull_ratio)
    L = positive_array("smoothness", smoothness)
    return result(r / (2 * L * (2 - r)))


def theorem1_a(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """A of Theorem 1; the squared gradient norm settles under 2A."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, G, variance = constants.smoothness, constants.G, constants.variance
    c_r = (1 - r) * (2 - r)
    drift = 2 * eta**2 * L**2 * c_r * (P * G**2 + 2 * variance)
    return result((drift + L * eta * variance * r**2) / (P * r**2))


def theorem1_b(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """B of the proof of Theorem 1, the factor that the step size must keep at or below 0."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    c_r = (1 - r) * (2 - r)
    return result((8 * eta**3 * L**2 * c_r + (2 * L * eta**2 - eta) * r**2) / (2 * P**2 * r**2))


def theorem1_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """Theorem 1: mean_t E|grad F(w_t)|^2 <= 2 Delta/(eta T) + 2A."""
    limit = theorem1_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 1")
    T = count_array("num_iterations", num_iterations)
    start = 2 * constants.initial_gap / (eta * T)
    return result(start + 2 * theorem1_a(eta, pull_ratio, num_workers, constants))


def theorem2_step(
    num_workers: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Number:
    """The step size of Theorem 2, sqrt(Delta P / (L sigma^2 T))."""
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    L, variance, gap = constants.smoothness, _noise(constants), constants.initial_gap
    return result(np.sqrt(gap * P / (L * variance * T)))


def theorem2_min_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """The T from which Theorem 2 holds: 4 Delta L P (2-r)^2 / (sigma^2 r^2).

    It is where the step size of Theorem 2 comes down to the limit of Theorem 1.
    """
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, variance, gap = constants.smoothness, _noise(constants), constants.initial_gap
    return result(4 * gap * L * P * (2 - r) ** 2 / (variance * r**2))


def theorem2_bound(
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """Theorem 2 with its constants: 4 sqrt(Delta L sigma^2/(P T)) plus a term in P/(r^2 T)."""
    T = _enough_iterations(pull_ratio, num_workers, num_iterations, constants)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, G, gap = constants.smoothness, constants.G, constants.initial_gap
    variance = constants.variance
    c_r = (1 - r) * (2 - r)
    leading = 4 * np.sqrt(gap * L * variance / (P * T))
    return result(leading + 4 * gap * L * c_r * (P * G**2 + 2 * variance) / (variance * r**2 * T))


def theorem2_speedup_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """The T from which the 1/sqrt(P T) term of Theorem 2 is the larger one.

    L Delta P c_r^2 (P G^2 + 2 sigma^2)^2 / (sigma^6 r^4): a linear speed-up at a fixed T asks for
    r of the order P^(3/4) / T^(1/4).
    """
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, G, gap, variance = (
        constants.smoothness,
        constants.G,
        constants.initial_gap,
        _noise(constants),
    )
    c_r = (1 - r) * (2 - r)
    return result(L * gap * P * (c_r * (P * G**2 + 2 * variance)) ** 2 / (variance**3 * r**4))


def _enough_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    smallest = np.asarray(theorem2_min_iterations(pull_ratio, num_workers, constants))
    T, smallest = np.broadcast_arrays(count_array("num_iterations", num_iterations), smallest)
    late = smallest * (1 - 1e-9) <= T
    if not late.all():
        at = tuple(np.argwhere(~late)[0])
        raise ConfigError(
            f"Theorem 2 holds from num_iterations = {np.ceil(smallest[at]):.0f} on, but it is "
            f"{T[at]:.0f}: run longer, or use theorem1_bound with a step size of your own."
        )
    return T


def _noise(constants: Constants) -> float:
    if constants.variance == 0:
        raise ConfigError(
            "Theorem 2 expects a variance above 0, but it is 0: without noise use Theorem 1 with "
            "its largest step size."
        )
    return constants.variance
