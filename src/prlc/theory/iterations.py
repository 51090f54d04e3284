"""The smallest number of iterations after which a bound is as low as wanted.

Infinite where the target lies at or below the floor that the bound settles at: then a smaller step
size, a larger pull ratio or more workers are needed, not more iterations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._inputs import Array, Number, count_array, positive_array, result, step_size_array
from .asgd_bounds import asgd_step_limit
from .constants import Constants
from .pr_bounds import theorem3_step_limit
from .prlc_bounds import theorem1_a, theorem1_step_limit
from .strongly_convex import theorem5_d, theorem5_step_limit


def theorem1_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """T at which 2 Delta/(eta T) + 2A of Theorem 1 has come down to `target`."""
    limit = theorem1_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 1")
    floor = 2 * np.asarray(theorem1_a(eta, pull_ratio, num_workers, constants))
    return _until(target, 2 * constants.initial_gap / eta, floor)


def theorem3_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """T at which the bound of Theorem 3 has come down to `target`.

    The bracket is taken at its limit (1-r)/(2r-1), which it never exceeds: enough for certain.
    """
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, theorem3_step_limit(pull_ratio, L), "Theorem 3")
    r, P = np.asarray(pull_ratio, float), count_array("num_workers", num_workers)
    drift = 4 * eta**2 * L**2 * variance / P * (1 - r) / (2 * r - 1)
    return _until(target, 2 * constants.initial_gap / eta, 2 * L * eta * variance / P + drift)


def asgd_updates(
    target: ArrayLike, step_size: ArrayLike, staleness: ArrayLike, constants: Constants
) -> Number:
    """K, in single gradients, at which the bound of ASGD has come down to `target`."""
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, asgd_step_limit(staleness, L), "The bound of ASGD")
    S = count_array("staleness", staleness)
    floor = eta * L * variance * (1 + 2 * L * S * eta)
    return _until(target, 2 * constants.initial_gap / eta, floor)


def theorem5_iterations(
    target: ArrayLike,
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
) -> Number:
    """T at which the optimality gap of Theorem 5 has come down to `target`."""
    limit = theorem5_step_limit(pull_ratio, constants.smoothness)
    eta = step_size_array(step_size, limit, "Theorem 5")
    goal = positive_array("target", target)
    floor = np.asarray(theorem5_d(eta, pull_ratio, num_workers, constants)) / (eta * constants.mu)
    shrink = np.log1p(-eta * constants.mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.log((goal - floor) / (constants.initial_gap - floor)) / shrink
    needed = np.where(goal > floor, needed, np.inf)
    # Started below its floor, the gap rises: then it is at most the floor throughout.
    return _whole(
        np.where(constants.initial_gap <= floor, np.where(goal >= floor, 1.0, np.inf), needed)
    )


def _until(target: ArrayLike, start: Array, floor: Array) -> Number:
    """The first T with start/T + floor <= target."""
    left = positive_array("target", target) - floor
    with np.errstate(divide="ignore"):
        return _whole(np.where(left > 0, start / np.maximum(left, 0), np.inf))


def _whole(iterations: Array) -> Number:
    """Rounded up to whole iterations, of which there is at least one."""
    return result(np.maximum(1.0, np.ceil(iterations * (1 - 1e-12))))
