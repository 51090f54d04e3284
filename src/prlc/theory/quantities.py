"""What the formulas take and return: an objective's constants, checked arguments, model ages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prlc.errors import ConfigError

Array: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | Array
"""The result of a formula: a float for scalar arguments, a broadcast array for arrays."""

PullPattern: TypeAlias = Literal["coin", "periodic"]
"""`coin`: each worker pulls with probability r. `periodic`: every H-th step, r = 1/H."""

# Relative slack, so that a step size computed by a limit passes that limit's own check.
_ROUNDING = 1e-9


# ---- Constants of an objective ------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """L, sigma^2, G, Delta = F(w_1) - F* and mu (the paper's c) of one objective.

    `gradient_bound` (Assumption 3) may be None for formulas without G, and `strong_convexity`
    for all but those of Theorem 5.
    """

    smoothness: float
    variance: float
    gradient_bound: float | None
    initial_gap: float
    strong_convexity: float | None = None

    def __post_init__(self) -> None:
        _check("smoothness", self.smoothness, positive=True)
        _check("variance", self.variance)
        _check("initial_gap", self.initial_gap)
        if self.gradient_bound is not None:
            _check("gradient_bound", self.gradient_bound)
        if self.strong_convexity is not None:
            _check("strong_convexity", self.strong_convexity, positive=True)
            if self.strong_convexity > self.smoothness:
                raise ConfigError(
                    f"strong_convexity should be at most the smoothness {self.smoothness:.6g}, "
                    f"but is {self.strong_convexity:.6g}: swap or correct the two."
                )

    @property
    def G(self) -> float:  # noqa: N802
        """The gradient bound; raises if it is missing."""
        if self.gradient_bound is None:
            raise ConfigError(
                "This formula expects a gradient_bound, but it is None: give one, or use a bound "
                "without it (prlc_iid_bound, prlc_convex_bound)."
            )
        return self.gradient_bound

    @property
    def mu(self) -> float:
        """The strong convexity; raises if it is missing."""
        if self.strong_convexity is None:
            raise ConfigError(
                "This formula expects a strong_convexity, but it is None: give one, or use a "
                "bound for general objectives (theorem1_bound)."
            )
        return self.strong_convexity


def _check(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        expected = "above 0" if positive else "at least 0"
        raise ConfigError(f"{name} should be {expected}, but is {value!r}: give a finite number.")


# ---- Arguments and results ----------------------------------------------------------------------


def result(value: ArrayLike) -> Number:
    """A float if `value` is a scalar, else an array."""
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array


def pull_ratio_array(value: ArrayLike) -> Array:
    """r, in (0, 1]."""
    r = _floats("pull_ratio", value)
    _require((r > 0) & (r <= 1), r, "pull_ratio", "in (0, 1]", "use 1 to pull at every step")
    return r


def positive_array(name: str, value: ArrayLike) -> Array:
    """A finite number above 0, such as L or eta."""
    array = _floats(name, value)
    fits = (array > 0) & np.isfinite(array)
    _require(fits, array, name, "above 0 and finite", "pass a positive number")
    return array


def count_array(name: str, value: ArrayLike) -> Array:
    """A count of at least 1, such as P or T."""
    array = _floats(name, value)
    _require((array >= 1) & np.isfinite(array), array, name, "at least 1", "count from 1")
    return array


def step_size_array(value: ArrayLike, limit: ArrayLike, statement: str) -> Array:
    """eta, in (0, limit]; the error names the largest admissible step size."""
    eta, largest = np.broadcast_arrays(_floats("step_size", value), np.asarray(limit))
    fits = (eta > 0) & (eta <= largest * (1 + _ROUNDING))
    if not fits.all():
        at = tuple(np.argwhere(~fits)[0])
        raise ConfigError(
            f"{statement} holds for a step_size in (0, {largest[at]:.6g}], but it is "
            f"{eta[at]:.6g}: use at most {largest[at]:.6g}."
        )
    return eta


def _floats(name: str, value: ArrayLike) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name} should be a number or an array of numbers, but is {value!r}: pass numbers."
        ) from None


def _require(fits: NDArray[np.bool_], value: Array, name: str, expected: str, advice: str) -> None:
    if not np.all(fits):
        raise ConfigError(
            f"{name} should be {expected}, but is {value[~fits].flat[0]:.6g}: {advice}."
        )


def iterations_until(target: ArrayLike, start: ArrayLike, floor: ArrayLike) -> Number:
    """The first T with start/T + floor <= target; inf if the target is not above the floor.

    Then more iterations do not help: use a smaller step size, more pulls or more workers.
    """
    left = positive_array("target", target) - np.asarray(floor)
    with np.errstate(divide="ignore"):
        return whole_iterations(np.where(left > 0, start / np.maximum(left, 0), np.inf))


def whole_iterations(iterations: Array) -> Number:
    """Rounded up to a whole number of iterations, at least 1."""
    return result(np.maximum(1.0, np.ceil(iterations * (1 - 1e-12))))


# ---- The age k of a worker's model: steps since its last pull -----------------------------------


def c_r(r: Array) -> Array:
    """c_r = (1-r)(2-r), the letter for what few pulls cost: E[k^2] = c_r/r^2."""
    return (1 - r) * (2 - r)


def age_distribution(pull_ratio: float, iteration: int) -> Array:
    """P[k = l] at iteration t with coin pulls, for l = 0..t-1; shape (t,).

    The common start counts as a pull, so the last entry is (1-r)^(t-1): k is a geometric age cut
    off at t-1. The paper's r (1-r)^l for every l does not sum to one.
    """
    r = pull_ratio_array(pull_ratio)
    if iteration < 1:
        raise ConfigError(f"iteration should be at least 1, but is {iteration}: count from 1.")
    ages = np.arange(iteration)
    chances: Array = np.where(ages < iteration - 1, r, 1.0) * (1 - r) ** ages
    return chances


def age_mean(pull_ratio: ArrayLike, schedule: PullPattern = "coin") -> Number:
    """E[k] in the long run (less before): (1-r)/r with coins, (H-1)/2 with periodic pulls."""
    r = _pattern_ratio(pull_ratio, schedule)
    mean = (1 - r) / r
    return result(mean if schedule == "coin" else mean / 2)


def age_second_moment(pull_ratio: ArrayLike, schedule: PullPattern = "coin") -> Number:
    """E[k^2] in the long run: c_r/r^2 with coins, (H-1)(2H-1)/6 = c_r/(6 r^2) if periodic.

    With coins this is step (b) of the paper's expectation (1) in Lemma 2.
    """
    r = _pattern_ratio(pull_ratio, schedule)
    second = c_r(r) / r**2
    return result(second if schedule == "coin" else second / 6)


def _pattern_ratio(pull_ratio: ArrayLike, schedule: PullPattern) -> Array:
    r = pull_ratio_array(pull_ratio)
    if schedule not in ("coin", "periodic"):
        raise ConfigError(
            f"schedule should be 'coin' or 'periodic', but is {schedule!r}: choose one of the two."
        )
    if schedule == "periodic":
        period = 1 / r
        whole = np.abs(period - np.round(period)) <= 1e-9 * period
        if not np.all(whole):
            raise ConfigError(
                "Periodic pulls expect a pull_ratio of 1/H with a whole H, but it is "
                f"{r[~whole].flat[0]:.6g}: use 1, 1/2, 1/3, ..."
            )
    return r
