"""Bad input is refused in one clear sentence; scalars and arrays come back as they went in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prlc import theory
from prlc.errors import ConfigError
from prlc.theory import Constants

CONSTANTS = Constants(2.0, 1.0, 3.0, 5.0, 0.5)

BOUNDS: list[Callable[..., Any]] = [
    theory.theorem1_bound,
    theory.prlc_bounded_bound,
    theory.prlc_iid_bound,
    theory.prlc_convex_bound,
    theory.theorem3_bound,
    theory.pr_bound,
    theory.theorem5_bound,
    theory.strongly_convex_bounded_bound,
    theory.strongly_convex_iid_bound,
]
LIMITS: list[Callable[..., Any]] = [
    theory.theorem1_step_limit,
    theory.prlc_iid_step_limit,
    theory.theorem3_step_limit,
    theory.pr_step_limit,
    theory.theorem5_step_limit,
]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("r", [0.0, -0.1, 1.0001, math.nan, math.inf])
def test_pull_ratio_outside_its_range(limit: Callable[..., Any], r: float) -> None:
    with pytest.raises(ConfigError, match=r"pull_ratio should be in \(0, 1\], but is"):
        limit(r)
    with pytest.raises(ConfigError, match="pull_ratio"):
        limit([0.9, r])


@pytest.mark.parametrize("limit", LIMITS)
def test_smoothness_must_be_positive(limit: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="smoothness should be above 0 and finite, but is -1"):
        limit(0.9, -1.0)


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_check_workers_iterations_and_step(bound: Callable[..., Any]) -> None:
    assert bound(0.01, 0.9, 4, 100, CONSTANTS) > 0
    with pytest.raises(ConfigError, match="num_workers should be at least 1, but is 0"):
        bound(0.01, 0.9, 0, 100, CONSTANTS)
    with pytest.raises(ConfigError, match="num_iterations should be at least 1, but is 0"):
        bound(0.01, 0.9, 4, 0, CONSTANTS)
    for bad in (0.0, -0.1, 0.6, math.nan):
        with pytest.raises(ConfigError, match=r"in \(0, .*\], but it is .*: use at most|above 0"):
            bound(bad, 0.9, 4, 100, CONSTANTS)


def test_a_step_size_that_is_too_large_names_the_largest() -> None:
    limit = theory.theorem1_step_limit(0.1, 2.0)
    with pytest.raises(ConfigError, match=f"at most {limit:.6g}"):
        theory.theorem1_bound([0.001, 0.02], 0.1, 4, 100, CONSTANTS)
    assert theory.theorem1_bound(limit, 0.1, 4, 100, CONSTANTS) > 0


@pytest.mark.parametrize("bound", BOUNDS)
def test_scalars_give_floats_and_arrays_broadcast(bound: Callable[..., Any]) -> None:
    one = bound(0.01, 0.9, 4, 100, CONSTANTS)
    assert type(one) is float
    r, P = np.array([0.8, 0.9, 1.0]), np.array([[1], [4]])
    many = bound(0.01, r, P, 100, CONSTANTS)
    assert many.shape == (2, 3)
    assert many[1, 1] == pytest.approx(one, rel=1e-14)
    assert np.isfinite(many).all()


def test_no_numbers() -> None:
    with pytest.raises(ConfigError, match="should be a number or an array of numbers"):
        theory.theorem1_step_limit("often")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("smoothness", 0.0),
        ("smoothness", math.inf),
        ("variance", -1.0),
        ("gradient_bound", -1.0),
        ("initial_gap", math.nan),
        ("strong_convexity", 0.0),
        ("strong_convexity", 3.0),
    ],
)
def test_constants_refuse_nonsense(field: str, value: float) -> None:
    fields: dict[str, Any] = {
        "smoothness": 2.0,
        "variance": 1.0,
        "gradient_bound": 1.0,
        "initial_gap": 1.0,
        field: value,
    }
    with pytest.raises(ConfigError, match=f"{field} should be"):
        Constants(**fields)


def test_a_missing_constant_says_what_to_use_instead() -> None:
    bare = Constants(1.0, 1.0, None, 1.0)
    with pytest.raises(ConfigError, match="prlc_convex_bound"):
        theory.theorem1_bound(0.01, 0.5, 4, 10, bare)
    with pytest.raises(ConfigError, match="strong_convexity"):
        theory.strongly_convex_iid_bound(0.01, 0.5, 4, 10, bare)
    assert theory.prlc_convex_bound(0.01, 0.5, 4, 10, bare) > 0


def test_theorem2_needs_noise_and_time() -> None:
    with pytest.raises(ConfigError, match="variance above 0"):
        theory.theorem2_step(4, 100, Constants(1.0, 0.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match="holds from num_iterations = 64 on, but it is 63"):
        theory.theorem2_bound(1.0, 16, 63, Constants(1.0, 1.0, 1.0, 1.0))
    assert theory.theorem2_bound(1.0, 16, 64, Constants(1.0, 1.0, 1.0, 1.0)) > 0


def test_theorem3_sends_low_ratios_to_the_bound_that_holds() -> None:
    with pytest.raises(ConfigError, match=r"above 0\.5, but it is 0\.5: use pr_bound"):
        theory.theorem3_step_limit(0.5)
    assert theory.pr_step_limit(0.5) > 0


def test_words_are_checked() -> None:
    with pytest.raises(ConfigError, match="schedule should be"):
        theory.age_mean(0.5, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method should be"):
        theory.noise_floor("sgd", 0.1, 0.5, 4)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole H"):
        theory.age_mean(0.4, "periodic")
