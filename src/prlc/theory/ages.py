"""The age k of a worker's model: how many steps ago it last was the global one."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from prlc.errors import ConfigError

from ._inputs import Array, Number, pull_ratio_array, result

Schedule: TypeAlias = Literal["coin", "periodic"]
"""`coin`: each worker pulls with probability r. `periodic`: every H-th step, r = 1/H."""


def age_distribution(pull_ratio: float, iteration: int) -> Array:
    """P[k = l], l = 0..t-1, at iteration t, with coins.

    The common start counts as a pull, so the last entry is (1-r)^(t-1): k is a geometric age cut
    at t-1. The paper's r (1-r)^l for every l does not sum to one.
    """
    r = pull_ratio_array(pull_ratio)
    if iteration < 1:
        raise ConfigError(f"iteration should be at least 1, but is {iteration}: count from 1.")
    ages = np.arange(iteration)
    chances: Array = np.where(ages < iteration - 1, r, 1.0) * (1 - r) ** ages
    return chances


def age_mean(pull_ratio: ArrayLike, schedule: Schedule = "coin") -> Number:
    """E[k] after long: (1-r)/r with coins, (H-1)/2 with periodic pulls. Earlier it is less."""
    r = _ratio(pull_ratio, schedule)
    mean = (1 - r) / r
    return result(mean if schedule == "coin" else mean / 2)


def age_second_moment(pull_ratio: ArrayLike, schedule: Schedule = "coin") -> Number:
    """E[k^2] after long: c_r/r^2 with coins, (H-1)(2H-1)/6 = c_r/(6 r^2) with periodic pulls.

    c_r = (1-r)(2-r). With coins it is step (b) of the paper's expectation (1) in Lemma 2.
    """
    r = _ratio(pull_ratio, schedule)
    second = (1 - r) * (2 - r) / r**2
    return result(second if schedule == "coin" else second / 6)


def _ratio(pull_ratio: ArrayLike, schedule: Schedule) -> Array:
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
