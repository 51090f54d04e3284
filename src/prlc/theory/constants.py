"""What the assumptions of the paper say about an objective, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prlc.errors import ConfigError


@dataclass(frozen=True)
class Constants:
    """L, sigma^2, G, Delta = F(w_1) - F* and mu (the paper's c) of one objective.

    `gradient_bound` (Assumption 3) may be None where no formula with G is asked for, and
    `strong_convexity` where none of Theorem 5 is.
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
        """The gradient bound, or an error that says it is missing."""
        if self.gradient_bound is None:
            raise ConfigError(
                "This formula expects a gradient_bound, but it is None: give one, or use a bound "
                "without it (prlc_iid_bound, prlc_convex_bound)."
            )
        return self.gradient_bound

    @property
    def mu(self) -> float:
        """The strong convexity, or an error that says it is missing."""
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
