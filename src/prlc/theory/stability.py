"""The exact behaviour of PR and PRLC on a quadratic, from second moments.

One coordinate with curvature h, the same objective on every worker, gradient noise of variance
sigma^2 on that coordinate. With w the global model, e_i = w_i - w and a = eta h, the four moments

    X = E w^2      C = E w e_i      U = E e_i^2      W = E e_i e_j

obey a linear recursion, m <- M m + sigma^2 eta^2 b. It gives the mean squared gradient h^2 X at
every step, the noise floor and the largest stable step size, without a simulation or a bound.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from prlc.errors import ConfigError

from .quantities import Array, Number, count_array, positive_array, pull_ratio_array, result

PullMethod: TypeAlias = Literal["prlc", "pr"]

_X, _C, _U, _W = range(4)


def prlc_stability_limit(curvature: ArrayLike = 1.0) -> Number:
    """PRLC is mean-square stable below 2/h, like SGD, for any pull ratio and number of workers."""
    return result(2 / positive_array("curvature", curvature))


def pr_stability_limit(
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    curvature: ArrayLike = 1.0,
    *,
    shared_coin: bool = False,
) -> Number:
    """PR is mean-square stable below 2 r P (2-r) / (h (r^2 P + 4 (1-r))).

    About r P / h for small r. If all workers share one coin, the limit is the one for a single
    worker, 2 r / (h (2-r)).
    """
    r = pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    h = positive_array("curvature", curvature)
    if shared_coin:
        P = np.ones_like(P)
    return result(2 * r * P * (2 - r) / (h * (r**2 * P + 4 * (1 - r))))


def prlc_noise_penalty(
    step_size: ArrayLike, pull_ratio: ArrayLike, curvature: ArrayLike = 1.0
) -> Number:
    """Ratio of PRLC's noise floor to SGD's, for many workers and small eta h.

    1 + 1/((1+x)(2+x)) with x = r/(eta h): at most 1.5, however rarely the workers pull.
    """
    eta = positive_array("step_size", step_size)
    h = positive_array("curvature", curvature)
    x = pull_ratio_array(pull_ratio) / (eta * h)
    return result(1 + 1 / ((1 + x) * (2 + x)))


def moment_matrix(
    method: PullMethod,
    scaled_step: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    *,
    shared_coin: bool = False,
) -> Array:
    """M in the recursion of (X, C, U, W), shape (..., 4, 4).

    `scaled_step` is a = eta h, negative for a negative curvature.
    """
    _check_method(method)
    a, q, q2, P = _arguments(scaled_step, pull_ratio, num_workers, shared_coin)
    m = np.zeros((*a.shape, 4, 4))
    mean = _mean_square(P)  # M = E (mean_i e_i)^2 = (U + (P-1) W)/P, as a row of coefficients
    unit = np.eye(4)
    a4, q4, q24 = a[..., None], q[..., None], q2[..., None]
    m[..., _X, :] = (1 - a4) ** 2 * unit[_X] - 2 * a4 * (1 - a4) * unit[_C] + a4**2 * mean
    if method == "prlc":
        pulled = (2 * a4 * (1 - a4) + a4**2) * mean
        m[..., _C, :] = q4 * ((1 - a4) * unit[_C] - a4 * mean)
        m[..., _U, :] = q4 * ((1 - a4) ** 2 * unit[_U] + pulled)
        m[..., _W, :] = q24 * ((1 - a4) ** 2 * unit[_W] + pulled)
    else:
        ey = a4 * (unit[_C] + mean)  # E e_i y, y = w - w' the step of the global model
        yy = a4**2 * (unit[_X] + 2 * unit[_C] + mean)  # E y^2
        m[..., _C, :] = q4 * (unit[_C] + a4 * (unit[_X] + unit[_C]) - ey - yy)
        m[..., _U, :] = q4 * (unit[_U] + 2 * ey + yy)
        m[..., _W, :] = q24 * (unit[_W] + 2 * ey + yy)
    return m


def moment_source(
    method: PullMethod,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    *,
    shared_coin: bool = False,
) -> Array:
    """b in the recursion, shape (..., 4): what noise adds in one step, per sigma^2 eta^2."""
    _check_method(method)
    _, q, q2, P = _arguments(0.0, pull_ratio, num_workers, shared_coin)
    one = np.ones_like(P)
    if method == "prlc":
        parts = (one / P, 0 * one, q * (1 - 1 / P), -q2 / P)
    else:
        parts = (one / P, -q / P, q / P, q2 / P)
    return np.stack(parts, axis=-1)


def moment_path(
    method: PullMethod,
    scaled_step: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    num_iterations: int,
    *,
    start: float,
    noise: ArrayLike,
    shared_coin: bool = False,
) -> Array:
    """(X, C, U, W) at iterations 1..T+1, shape (T+1, ..., 4).

    `start` is w_1^2 and `noise` is sigma^2 eta^2. An unstable run overflows to inf.
    """
    m = moment_matrix(method, scaled_step, pull_ratio, num_workers, shared_coin=shared_coin)
    b = moment_source(method, pull_ratio, num_workers, shared_coin=shared_coin)
    b = np.broadcast_to(b * np.asarray(noise, dtype=np.float64)[..., None], m.shape[:-1])
    path = np.zeros((num_iterations + 1, *m.shape[:-1]))
    path[0, ..., _X] = start
    for t in range(num_iterations):
        path[t + 1] = np.einsum("...ij,...j->...i", m, path[t]) + b
    return path


def spectral_radius(
    method: PullMethod,
    scaled_step: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    *,
    shared_coin: bool = False,
) -> Number:
    """The factor by which the second moments grow per step in the long run."""
    m = moment_matrix(method, scaled_step, pull_ratio, num_workers, shared_coin=shared_coin)
    return result(np.abs(np.linalg.eigvals(m)).max(axis=-1))


def noise_floor(
    method: PullMethod,
    scaled_step: ArrayLike,
    pull_ratio: ArrayLike,
    num_workers: ArrayLike,
    *,
    shared_coin: bool = False,
) -> Number:
    """X in the long run, per sigma^2 eta^2; inf where the method is unstable."""
    m = moment_matrix(method, scaled_step, pull_ratio, num_workers, shared_coin=shared_coin)
    b = moment_source(method, pull_ratio, num_workers, shared_coin=shared_coin)
    stable = np.abs(np.linalg.eigvals(m)).max(axis=-1) < 1
    m = np.where(stable[..., None, None], m, 0.0)
    b = np.broadcast_to(b, m.shape[:-1])
    floor = np.linalg.solve(np.eye(4) - m, b[..., None])[..., _X, 0]
    return result(np.where(stable, floor, np.inf))


def _arguments(
    scaled_step: ArrayLike, pull_ratio: ArrayLike, num_workers: ArrayLike, shared_coin: bool
) -> tuple[Array, Array, Array, Array]:
    a = np.asarray(scaled_step, dtype=np.float64)
    q = 1 - pull_ratio_array(pull_ratio)
    P = count_array("num_workers", num_workers)
    a, q, P = np.broadcast_arrays(a, q, P)
    return a, q, q if shared_coin else q**2, P


def _mean_square(P: Array) -> Array:
    return np.stack((0 * P, 0 * P, 1 / P, 1 - 1 / P), axis=-1)


def _check_method(method: str) -> None:
    if method not in ("prlc", "pr"):
        raise ConfigError(f"method should be 'prlc' or 'pr', but is {method!r}: choose one.")
