"""The smallest number of iterations is the first at which the bound is low enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prlc import theory
from prlc.errors import ConfigError

PROBLEM = theory.Constants(
    smoothness=2.0, variance=1.5, gradient_bound=2.0, initial_gap=3.0, strong_convexity=0.5
)
RATIOS = [0.6, 0.8, 1.0]


def statement(name: str, r: float) -> tuple[Callable[..., Any], Callable[..., Any], float]:
    """Iterations to a target, the bound after some iterations, and a step size, for 8 workers."""
    limit = {
        "theorem1": lambda: theory.theorem1_step_limit(r, 2.0),
        "theorem3": lambda: theory.theorem3_step_limit(r, 2.0),
        "theorem5": lambda: theory.theorem5_step_limit(r, 2.0),
        "asgd": lambda: theory.asgd_step_limit(8, 2.0),
    }[name]()
    eta = 0.2 * float(limit)
    if name == "asgd":
        return (
            lambda target: theory.asgd_updates(target, eta, 8, PROBLEM),
            lambda K: theory.asgd_bound(eta, 8, K, PROBLEM),
            eta,
        )
    iterations, bound = getattr(theory, f"{name}_iterations"), getattr(theory, f"{name}_bound")
    return (
        lambda target: iterations(target, eta, r, 8, PROBLEM),
        lambda T: bound(eta, r, 8, T, PROBLEM),
        eta,
    )


@pytest.mark.parametrize("r", RATIOS)
@pytest.mark.parametrize("name", ["theorem1", "theorem3", "theorem5", "asgd"])
@pytest.mark.parametrize("above", [1.01, 1.5, 4.0])
def test_the_bound_is_low_enough_from_there_on(name: str, r: float, above: float) -> None:
    iterations, bound, _ = statement(name, r)
    target = above * float(bound(1e12))
    T = iterations(target)
    assert int(T) == T
    assert bound(T) <= target * (1 + 1e-9)
    if name != "theorem3" and T > 1:  # its bracket is taken at its limit: enough, not the least
        assert bound(T - 1) > target


@pytest.mark.parametrize("r", RATIOS)
@pytest.mark.parametrize("name", ["theorem1", "theorem3", "theorem5", "asgd"])
def test_below_its_floor_no_number_is_enough(name: str, r: float) -> None:
    iterations, bound, _ = statement(name, r)
    assert iterations(0.99 * float(bound(1e12))) == math.inf


def test_fewer_pulls_take_more_iterations() -> None:
    eta = 0.2 * float(theory.theorem1_step_limit(0.1, 2.0))
    ratios = np.array([0.1, 0.2, 0.5, 1.0])
    needed = theory.theorem1_iterations(1.0, eta, ratios, 8, PROBLEM)
    assert (np.diff(np.asarray(needed)) <= 0).all()
    assert np.asarray(needed)[0] > np.asarray(needed)[-1]


def test_a_target_that_is_reached_at_the_start_takes_one_iteration() -> None:
    assert theory.theorem1_iterations(1e9, 0.01, 0.5, 8, PROBLEM) == 1
    assert theory.theorem5_iterations(10.0, 0.01, 0.5, 8, PROBLEM) == 1


def test_started_below_its_floor_the_gap_stays_there() -> None:
    near = theory.Constants(2.0, 1.5, 2.0, initial_gap=1e-6, strong_convexity=0.5)
    floor = float(theory.theorem5_bound(0.01, 0.5, 8, 1e9, near))
    assert theory.theorem5_iterations(1.01 * floor, 0.01, 0.5, 8, near) == 1


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_targets_must_be_positive(target: float) -> None:
    with pytest.raises(ConfigError, match="target should be above 0"):
        theory.theorem1_iterations(target, 0.01, 0.5, 8, PROBLEM)


def test_a_step_that_is_not_admissible_is_named() -> None:
    with pytest.raises(ConfigError, match="use at most"):
        theory.theorem5_iterations(1.0, 1.0, 0.5, 8, PROBLEM)
