"""Checks of what goes into a formula, and the shape of what comes out."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prlc.errors import ConfigError

Array: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | Array
"""What every formula returns: a float for scalars in, an array (broadcast) for arrays in."""

# A step size computed by one of the limits of this package passes that limit's own check.
_ROUNDING = 1e-9


def result(value: ArrayLike) -> Number:
    """A float if the value is a scalar, else an array."""
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
    _require((array > 0) & np.isfinite(array), array, name, "above 0 and finite", "give a real one")
    return array


def count_array(name: str, value: ArrayLike) -> Array:
    """A count of at least 1, such as P or T."""
    array = _floats(name, value)
    _require((array >= 1) & np.isfinite(array), array, name, "at least 1", "count from 1")
    return array


def step_size_array(value: ArrayLike, limit: ArrayLike, statement: str) -> Array:
    """eta, in (0, limit]; the message names the largest admissible one."""
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
