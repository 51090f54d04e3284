"""Formulas exactly as the paper prints them, where they differ from what its proofs give.

For comparison only: docs/theory.md says what is wrong with each, and tests/theory/test_errata.py
shows it. Formulas that are 0/0 at r = 1 return nan there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .quantities import (
    Array,
    Constants,
    Number,
    c_r,
    count_array,
    positive_array,
    pull_ratio_array,
    result,
)


def age_distribution(pull_ratio: float, iteration: int) -> Array:
    """Proof of Lemma 2: P[k = l] = r (1-r)^l for l = 0..t-1. Sums to 1 - (1-r)^t."""
    r = pull_ratio_array(pull_ratio)
    chances: Array = r * (1 - r) ** np.arange(iteration)
    return chances


def lemma1_bound(gradients: ArrayLike, variance: ArrayLike) -> Number:
    """Lemma 1 as stated: 2 P sigma^2 + 2 sum_i |grad F(w_i)|^2; gradients have shape (P, d).

    False from P = 3 on; the proof ends with the norm of the sum instead.
    """
    g = np.asarray(gradients, dtype=np.float64)
    return result(2 * len(g) * np.asarray(variance) + 2 * (g**2).sum())


def theorem1_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The root of B = 0 in Theorem 1, not simplified. Correct, but 0/0 at r = 1."""
    r = pull_ratio_array(pull_ratio)
    L = positive_array("smoothness", smoothness)
    return _ratio(_theorem1_root(r, L), 16 * L**2 * c_r(r))


def theorem2_min_iterations(
    pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """The condition on T of Theorem 2, not simplified. Correct, but 0/0 at r = 1."""
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L, variance, gap = constants.smoothness, constants.variance, constants.initial_gap
    return _ratio(256 * gap * L**3 * c_r(r) ** 2 * P, variance * _theorem1_root(r, L) ** 2)


def theorem3_step_limit(pull_ratio: ArrayLike, smoothness: ArrayLike = 1.0) -> Number:
    """The step size of Theorem 3: not a root of H, nor of the dimension 1/L."""
    r = pull_ratio_array(pull_ratio)
    L = positive_array("smoothness", smoothness)
    return _ratio(-4 * L + np.sqrt(16 * L**2 + 32 * L * (1 - r)), 16 * L * (1 - r))


def theorem3_noise(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: ArrayLike,
    constants: Constants,
) -> Number:
    """The last term of Theorem 3, with L where the proof has L^2."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    T = count_array("num_iterations", num_iterations)
    d = 2 * r - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        bracket = (1 - r) / d - (1 - r) * (1 - 2**T * (1 - r) ** T) / (d**2 * T)
    return result(4 * eta**2 * constants.smoothness * constants.variance / P * bracket)


def theorem5_step_limit(
    pull_ratio: ArrayLike, num_workers: ArrayLike, smoothness: ArrayLike = 1.0
) -> Number:
    """The step size of Theorem 5: grows without bound as r -> 1."""
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    with np.errstate(divide="ignore"):
        limit = (-(r**2) + 2 * r * np.sqrt(r**2 + 16 * P * c_r(r))) / (8 * P * L * c_r(r))
    return result(limit)


def theorem5_h(
    step_size: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    smoothness: ArrayLike = 1.0,
) -> Number:
    """H in the proof of Theorem 5, with 1/P where the lemma has 1/P^2."""
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    return result((2 * L * eta**2 - eta) / (2 * P**2) + 4 * eta**3 * L**2 * c_r(r) / (P * r**2))


def theorem5_h_root(
    pull_ratio: ArrayLike, num_workers: ArrayLike, smoothness: ArrayLike = 1.0
) -> Number:
    """The true root of the printed H: r / (L (r + sqrt(r^2 + 8 P c_r)))."""
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    L = positive_array("smoothness", smoothness)
    return result(r / (L * (r + np.sqrt(r**2 + 8 * P * c_r(r)))))


def theorem5_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D in the statement of Theorem 5 (P^2 G^2)."""
    P = count_array("num_workers", num_workers)
    return _theorem5_d(step_size, pull_ratio, P, constants, P**2)


def theorem5_d_appendix(
    step_size: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, constants: Constants
) -> Number:
    """D in the proof of Theorem 5 (P G^2)."""
    P = count_array("num_workers", num_workers)
    return _theorem5_d(step_size, pull_ratio, P, constants, P)


def _theorem5_d(
    step_size: ArrayLike, pull_ratio: ArrayLike, P: Array, constants: Constants, weight: Array
) -> Number:
    eta = positive_array("step_size", step_size)
    r = pull_ratio_array(pull_ratio)
    L, G, variance = constants.smoothness, constants.G, constants.variance
    drift = 2 * eta**2 * L**2 * c_r(r) * (eta * weight * G**2 + 2 * variance)
    return result((drift + 2 * eta**2 * variance * r**2) / (P * r**2))


def _theorem1_root(r: Array, L: float | Array) -> Array:
    root: Array = -2 * L * r**2 + np.sqrt(4 * L**2 * r**4 + 32 * L**2 * r**2 * c_r(r))
    return root


def _ratio(top: Array, bottom: Array) -> Number:
    with np.errstate(divide="ignore", invalid="ignore"):
        return result(top / bottom)
