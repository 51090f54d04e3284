"""Bounds for PRLC with complete proofs: sharper than Theorem 1, and without its gaps.

All three start from the exact step of a worker's error e_i = w_i - w,

    pull: e_i <- 0        no pull: e_i <- e_i - eta (g_i - mean_j g_j),

whose coin is independent of all that came before. With V = mean_i E|e_i|^2 and eta <= 1/L,

    mean_t E|grad F(w_t)|^2 <= 2 Delta/(eta T) + L eta sigma^2/P + L^2 mean_t V_t

(smoothness, and the exact variance of a mean of P independent gradients), so each bound is a bound
on V. The derivations are in docs/theory.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._inputs import (
    Array,
    Number,
    count_array,
    positive_array,
    pull_ratio_array,
    result,
    step_size_array,
)
from .ages import Schedule, age_mean, age_second_moment
from .constants import Constants


def smooth_step_limit(smoothness: ArrayLike = 1.0) -> Number:
    """1/L: all that the bounded-gradient and the convex bound ask of the step size, at any r."""
    return result(1 / positive_array("smoothness", smoothness))


def prlc_bounded_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
    *,
    schedule: Schedule = "coin",
) -> Number:
    """Bounded gradients, any data, any eta <= 1/L, any schedule of pulls.

    V <= 4 eta^2 G^2 (1-1/P)^2 E[k^2], because |g_i - mean g| <= 2 (1-1/P) G surely.
    """
    statement = "The bounded-gradient bound"
    eta = step_size_array(step_size, smooth_step_limit(constants.smoothness), statement)
    V = bounded_spread(eta, pull_ratio, num_workers, constants, schedule)
    return result(_descent(eta, V, num_workers, num_iterations, constants))


def prlc_iid_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """Below this step size the IID bound is finite: (1/sqrt(1-r) - 1)/L, at most 1/L.

    Roughly r/(2L). It is sharp: with curvature -L and many workers, local models separate beyond.
    """
    r = pull_ratio_array(pull_ratio)
    L = positive_array("smoothness", smoothness)
    with np.errstate(divide="ignore"):
        separation = np.expm1(-0.5 * np.log1p(-r))
    return result(np.minimum(separation, 1.0) / L)


def prlc_iid_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """IID data, no gradient bound: V <= (1-r) [(1 + eta L)^2 V + eta^2 sigma^2 (1-1/P)].

    Infinite at the step limit itself.
    """
    r = pull_ratio_array(pull_ratio)
    L = constants.smoothness
    eta = step_size_array(step_size, prlc_iid_step_limit(r, L), "The IID bound")
    P = count_array("num_workers", num_workers)
    # 1 - (1-r)(1 + eta L)^2, written so that nothing cancels at small r and eta.
    shrink = np.maximum(r * (1 + eta * L) ** 2 - eta * L * (2 + eta * L), 0)
    added = (1 - r) * eta**2 * constants.variance * (1 - 1 / P)
    with np.errstate(divide="ignore", invalid="ignore"):
        V = np.where(added > 0, added / shrink, 0.0)
    return result(_descent(eta, V, P, num_iterations, constants))


def prlc_convex_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """IID data, convex objective, any eta <= 1/L: V <= eta^2 sigma^2 (1-1/P) (1-r)/r.

    A gradient step does not spread the workers of a convex objective, only noise does. So the
    price of few pulls is 1/r, not 1/r^2.
    """
    statement = "The convex bound"
    eta = step_size_array(step_size, smooth_step_limit(constants.smoothness), statement)
    V = convex_spread(eta, pull_ratio, num_workers, constants)
    return result(_descent(eta, V, num_workers, num_iterations, constants))


def bounded_spread(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
    schedule: Schedule = "coin",
) -> Array:
    """V, the mean squared distance of the workers from the global model, by way of G."""
    eta = positive_array("step_size", step_size)
    P = count_array("num_workers", num_workers)
    age = np.asarray(age_second_moment(pull_ratio, schedule))
    V: Array = 4 * eta**2 * constants.G**2 * (1 - 1 / P) ** 2 * age
    return V


def convex_spread(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Array:
    """V of a convex objective with IID data, where noise alone drives the workers apart."""
    eta = positive_array("step_size", step_size)
    P = count_array("num_workers", num_workers)
    V: Array = eta**2 * constants.variance * (1 - 1 / P) * np.asarray(age_mean(pull_ratio))
    return V


def _descent(
    eta: Array, V: Array, num_workers: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    """2 Delta/(eta T) + L eta sigma^2/P + L^2 V."""
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    L = constants.smoothness
    bound: Array = 2 * constants.initial_gap / (eta * T)
    return bound + L * eta * constants.variance / P + L**2 * V
