"""Asynchronous SGD, with which Theorem 4 compares PRLC (Theorem 1 of Lian et al., 2015).

One update is one gradient of one worker. P workers that each finish one gradient make P updates,
where PRLC makes one: `asgd_equal_work_bound` compares at the same number of gradients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._inputs import Number, count_array, positive_array, result, step_size_array
from .constants import Constants


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
    L, variance = constants.smoothness, constants.variance
    eta = step_size_array(step_size, asgd_step_limit(staleness, L), "The bound of ASGD")
    S = count_array("staleness", staleness)
    K = count_array("num_updates", num_updates)
    return result(
        2 * constants.initial_gap / (eta * K) + eta * L * variance * (1 + 2 * L * S * eta)
    )


def asgd_equal_work_step_limit(num_workers: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The same limit for P updates of eta/P together; between 1/(2L) and 1/(sqrt(2) L)."""
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
