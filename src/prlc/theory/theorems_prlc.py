"""PRLC: Theorems 1 and 2 (smooth objective) and Theorem 5 (strongly convex).

The paper's algebra, in forms that stay exact up to and including r = 1; Theorem 5 as it follows
from the paper's own lemmas. `proved.py` has sharper bounds with complete proofs, which imply
Theorems 1 and 5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from prlc.errors import ConfigError

from .quantities import (
    Array,
    Constants,
    Number,
    c_r,
    count_array,
    iterations_until,
    positive_array,
    pull_ratio_array,
    result,
    step_size_array,
    whole_iterations,
)

# ---- Theorem 1: constant step size --------------------------------------------------------------


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
    """A of Theorem 1: the squared gradient norm settles below 2A."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, G, variance = constants.smoothness, constants.G, constants.variance
    drift = 2 * eta**2 * L**2 * c_r(r) * (P * G**2 + 2 * variance)
    return result((drift + L * eta * variance * r**2) / (P * r**2))


def theorem1_b(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """B in the proof of Theorem 1; the step size must keep it at or below 0."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    return result((8 * eta**3 * L**2 * c_r(r) + (2 * L * eta**2 - eta) * r**2) / (2 * P**2 * r**2))


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


def theorem1_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """The smallest T with a Theorem 1 bound of at most `target`; inf if there is none."""
    limit = theorem1_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 1")
    floor = 2 * np.asarray(theorem1_a(eta, pull_ratio, num_workers, constants))
    return iterations_until(target, 2 * constants.initial_gap / eta, floor)


# ---- Theorem 2: step size chosen for T ----------------------------------------------------------


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

    From there on, its step size is within the limit of Theorem 1.
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
    leading = 4 * np.sqrt(gap * L * variance / (P * T))
    drift = 4 * gap * L * c_r(r) * (P * G**2 + 2 * variance) / (variance * r**2 * T)
    return result(leading + drift)


def theorem2_speedup_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """The T from which the 1/sqrt(P T) term of Theorem 2 dominates.

    L Delta P c_r^2 (P G^2 + 2 sigma^2)^2 / (sigma^6 r^4): at a fixed T, linear speed-up needs r of
    the order P^(3/4) / T^(1/4).
    """
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, G, gap = constants.smoothness, constants.G, constants.initial_gap
    variance = _noise(constants)
    return result(L * gap * P * (c_r(r) * (P * G**2 + 2 * variance)) ** 2 / (variance**3 * r**4))


def _enough_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    smallest = np.asarray(theorem2_min_iterations(pull_ratio, num_workers, constants))
    T, smallest = np.broadcast_arrays(count_array("num_iterations", num_iterations), smallest)
    enough = smallest * (1 - 1e-9) <= T
    if not enough.all():
        at = tuple(np.argwhere(~enough)[0])
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


# ---- Theorem 5: strongly convex objective -------------------------------------------------------
# The optimality gap shrinks by 1 - eta mu a step, down to a floor of D/(eta mu).


def theorem5_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """r / (2 L (2-r)), as in Theorem 1: the condition H <= 0 is B <= 0."""
    return theorem1_step_limit(pull_ratio, smoothness)


def theorem5_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D = eta A, the most that one step adds to the gap."""
    eta = positive_array("step_size", step_size)
    return result(eta * theorem1_a(eta, pull_ratio, num_workers, constants))


def theorem5_h(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """H, equal to B of Theorem 1; the step size must keep it at or below 0."""
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


def theorem5_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """The smallest T with a Theorem 5 gap of at most `target`; inf if there is none."""
    limit = theorem5_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 5")
    goal = positive_array("target", target)
    floor = np.asarray(theorem5_d(eta, pull_ratio, num_workers, constants)) / (eta * constants.mu)
    shrink = np.log1p(-eta * constants.mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.log((goal - floor) / (constants.initial_gap - floor)) / shrink
    needed = np.where(goal > floor, needed, np.inf)
    # A gap that starts below its floor rises towards it and never exceeds it.
    return whole_iterations(
        np.where(constants.initial_gap <= floor, np.where(goal >= floor, 1.0, np.inf), needed)
    )


def gap_after(
    step_size: ArrayLike, D: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    """gap <- (1 - eta mu) gap + D, T times, starting from Delta."""
    eta = positive_array("step_size", step_size)
    T = count_array("num_iterations", num_iterations)
    floor = np.asarray(D) / (eta * constants.mu)
    after: Array = (1 - eta * constants.mu) ** T * (constants.initial_gap - floor) + floor
    return after
