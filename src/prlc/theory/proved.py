"""Bounds with complete proofs, not in the paper: PRLC, strongly convex PRLC, and PR at every r.

Those of PRLC are sharper than Theorems 1 and 5 and close their gaps. They start from the exact step
of a worker's error e_i = w_i - w,

    pull: e_i <- 0        no pull: e_i <- e_i - eta (g_i - mean_j g_j),

whose coin is independent of the past. With V = mean_i E|e_i|^2 and eta <= 1/L,

    mean_t E|grad F(w_t)|^2 <= 2 Delta/(eta T) + L eta sigma^2/P + L^2 mean_t V_t

(smoothness, and the exact variance of a mean of P independent gradients), so each bound is a bound
on V. The derivations are in docs/theory.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .quantities import (
    Array,
    Constants,
    Number,
    PullPattern,
    age_mean,
    age_second_moment,
    count_array,
    positive_array,
    pull_ratio_array,
    result,
    step_size_array,
)
from .theorems_prlc import gap_after

# ---- PRLC ---------------------------------------------------------------------------------------


def smooth_step_limit(smoothness: ArrayLike = 1.0) -> Number:
    """1/L, the step limit of the bounded-gradient and the convex bounds at any r."""
    return result(1 / positive_array("smoothness", smoothness))


def prlc_bounded_bound(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
    *,
    schedule: PullPattern = "coin",
) -> Number:
    """Bounded gradients, any data, any eta <= 1/L, any pattern of pulls.

    V <= 4 eta^2 G^2 (1-1/P)^2 E[k^2], because |g_i - mean g| <= 2 (1-1/P) G always.
    """
    eta = _smooth_step(step_size, constants, "The bounded-gradient bound")
    V = _bounded_spread(eta, pull_ratio, num_workers, constants, schedule)
    return result(_descent(eta, V, num_workers, num_iterations, constants))


def prlc_iid_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """Below this step size the IID bound is finite: (1/sqrt(1-r) - 1)/L, at most 1/L.

    Roughly r/(2L), and sharp: beyond it, with curvature -L and many workers, local models
    separate.
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

    On a convex objective gradient steps do not drive the workers apart, only noise does, so rare
    pulls cost 1/r and not 1/r^2.
    """
    eta = _smooth_step(step_size, constants, "The convex bound")
    V = _convex_spread(eta, pull_ratio, num_workers, constants)
    return result(_descent(eta, V, num_workers, num_iterations, constants))


def _bounded_spread(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    constants: Constants,
    schedule: PullPattern = "coin",
) -> Array:
    """A bound on V from the gradient bound G."""
    eta = positive_array("step_size", step_size)
    P = count_array("num_workers", num_workers)
    age = np.asarray(age_second_moment(pull_ratio, schedule))
    V: Array = 4 * eta**2 * constants.G**2 * (1 - 1 / P) ** 2 * age
    return V


def _convex_spread(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Array:
    """A bound on V for a convex objective and IID data."""
    eta = positive_array("step_size", step_size)
    P = count_array("num_workers", num_workers)
    V: Array = eta**2 * constants.variance * (1 - 1 / P) * np.asarray(age_mean(pull_ratio))
    return V


def _smooth_step(step_size: ArrayLike, constants: Constants, statement: str) -> Array:
    return step_size_array(step_size, smooth_step_limit(constants.smoothness), statement)


def _descent(
    eta: Array, V: Array, num_workers: ArrayLike, num_iterations: ArrayLike, constants: Constants
) -> Array:
    """2 Delta/(eta T) + L eta sigma^2/P + L^2 V."""
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    L = constants.smoothness
    bound: Array = 2 * constants.initial_gap / (eta * T)
    return bound + L * eta * constants.variance / P + L**2 * V


# ---- PRLC on a strongly convex objective --------------------------------------------------------
# As in Theorem 5, the gap shrinks by 1 - eta mu a step, down to a floor of D/(eta mu).


def strongly_convex_bounded_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D with bounded gradients, for any eta <= 1/L; below the D of Theorem 5."""
    V = _bounded_spread(step_size, pull_ratio, num_workers, constants)
    return _proved_d(step_size, V, num_workers, constants)


def strongly_convex_iid_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D with IID data, for any eta <= 1/L; needs no G."""
    V = _convex_spread(step_size, pull_ratio, num_workers, constants)
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


def _proved_d(
    step_size: ArrayLike, V: Array, num_workers: ArrayLike, constants: Constants
) -> Number:
    """L eta^2 sigma^2/(2P) + (eta/2) L^2 V: one step of the descent above."""
    eta = _smooth_step(step_size, constants, "The strongly convex bound")
    P = count_array("num_workers", num_workers)
    L = constants.smoothness
    return result(L * eta**2 * constants.variance / (2 * P) + eta / 2 * L**2 * V)


# ---- PR at every pull ratio ---------------------------------------------------------------------


def pr_kappa(pull_ratio: ArrayLike) -> Number:
    """kappa = q/(1 - sqrt q)^2, q = 1-r: how much PR amplifies the steps that a worker misses.

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
    """PR for every r in (0, 1], where Theorem 3 needs r > 1/2; no G.

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
