"""What the theory says about step sizes and pull ratios, given a problem's constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prlc.errors import ConfigError
from prlc.theory import (
    Constants,
    prlc_bounded_bound,
    prlc_stability_limit,
    smooth_step_limit,
    theorem1_bound,
    theorem1_step_limit,
)

_NUM_RATES = 6
_MAX_STEPS = 1e15  # a bound that needs more is of no use

_Bound = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike, Constants], ArrayLike]
_LETTERS = {
    "L": "smoothness",
    "sigma2": "variance",
    "G": "gradient_bound",
    "gap": "initial_gap",
}


@dataclass(frozen=True)
class StepLimits:
    """The largest step sizes at a pull ratio, the best-founded first."""

    theorem1: float
    """By Theorem 1 of the paper: r / (2 L (2-r))."""
    proved: float
    """By the bounded-gradient bound of `prlc.theory`: 1/L at any r."""
    stable: float
    """Beyond 2/L, PRLC diverges on a quadratic of curvature L, as SGD does."""

    @classmethod
    def at(cls, pull_ratio: float, smoothness: float) -> StepLimits:
        return cls(
            float(theorem1_step_limit(pull_ratio, smoothness)),
            float(smooth_step_limit(smoothness)),
            float(prlc_stability_limit(smoothness)),
        )

    def judge(self, lr: float, pull_ratio: float) -> str | None:
        """A warning that names the admissible step sizes, if Theorem 1 does not admit this one."""
        if lr <= self.theorem1 * (1 + 1e-9):
            return None
        warning = (
            f"The step size {lr:.4g} is outside the admissible range of Theorem 1 at r = "
            f"{pull_ratio:g}: the largest admissible is {self.theorem1:.4g}"
        )
        if lr <= self.proved:
            return f"{warning} (the sharper bound of `prlc.theory` admits up to {self.proved:.4g})."
        if lr <= self.stable:
            return f"{warning}, and {self.proved:.4g} by the sharper bound of `prlc.theory`."
        return (
            f"{warning}; it is even beyond {self.stable:.4g} = 2/L, where PRLC diverges on a "
            "quadratic of the measured curvature."
        )


def learning_rates(smoothness: float) -> tuple[float, ...]:
    """The rates worth a trial: the stability limit 2/L, halved again and again."""
    largest = float(prlc_stability_limit(smoothness))
    return tuple(largest / 2**k for k in reversed(range(_NUM_RATES)))


@dataclass(frozen=True)
class BoundAnswer:
    """When a bound, at its best step size, is as low as NSGD's after a given number of steps."""

    lr: float
    steps: float
    seconds: float


#: The bounds, each with its largest step size at (r, L).
BOUNDS: dict[str, tuple[_Bound, Callable[[float, float], float]]] = {
    "theorem1": (theorem1_bound, lambda r, L: float(theorem1_step_limit(r, L))),
    "bounded_gradients": (prlc_bounded_bound, lambda _, L: float(smooth_step_limit(L))),
}


def answers(
    name: str,
    seconds_per_step: Mapping[float, float],
    num_workers: int,
    steps: int,
    constants: Constants,
    rates: tuple[float, ...] | None = None,
) -> dict[float, BoundAnswer]:
    """For each pull ratio, the steps until its bound is as low as NSGD's after `steps`.

    The step size is the best of `rates`, or of all that the bound admits.
    """
    bound, limit = BOUNDS[name]

    def lowest(ratio: float, T: float) -> tuple[float, float]:
        etas = _step_sizes(limit(ratio, constants.smoothness), rates)
        values = np.asarray(bound(etas, ratio, num_workers, T, constants))
        best = int(values.argmin())
        return float(values[best]), float(etas[best])

    target, _ = lowest(1.0, steps)
    found = {}
    for ratio, seconds in seconds_per_step.items():
        T = float(steps)
        if ratio < 1:
            T = _first(lambda T, ratio=ratio: lowest(ratio, T)[0] <= target)  # type: ignore[misc]
        lr = lowest(ratio, min(T, _MAX_STEPS))[1]
        found[ratio] = BoundAnswer(lr, T, T * seconds)
    return found


def _step_sizes(largest: float, rates: tuple[float, ...] | None) -> NDArray[np.float64]:
    if rates is not None:
        return np.asarray(rates)
    return largest * np.geomspace(1e-6, 1.0, 400)


def _first(holds: Callable[[float], bool]) -> float:
    """The smallest T, to a thousandth, at which `holds`; infinite if there is none."""
    if holds(1.0):
        return 1.0
    low, high = 0.0, math.log(_MAX_STEPS)
    if not holds(_MAX_STEPS):
        return math.inf
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)


def parse_constants(text: str) -> Constants:
    """Constants from `L=2,sigma2=2.5,G=4,gap=2.2`."""
    values: dict[str, float] = {}
    for part in text.split(","):
        letter, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or letter not in _LETTERS:
            raise ConfigError(
                f"Constants are written as L=2,sigma2=2.5,G=4,gap=2.2; {part.strip()!r} is none of "
                f"{', '.join(_LETTERS)}."
            )
        try:
            values[_LETTERS[letter]] = float(number)
        except ValueError:
            raise ConfigError(
                f"The constant {letter} should be a number, but is {number!r}."
            ) from None
    missing = [letter for letter, name in _LETTERS.items() if name not in values]
    if missing:
        raise ConfigError(
            f"All four constants are needed, but {', '.join(missing)} is missing: write for "
            "example L=2,sigma2=2.5,G=4,gap=2.2, or leave them out to have them measured."
        )
    return Constants(**values)
