"""Measured runs lie under the bounds, and not far under the sharp ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from prlc import theory
from prlc.theory import Constants
from prlc.theory.stability import PullMethod

from .montecarlo import (
    Array,
    Outcome,
    Setting,
    SyntheticObjective,
    log_cosh,
    measure,
    quadratic,
    redescending,
)

START = np.array([1.5, -1.0, 0.5])
OBJECTIVES = {
    "quadratic": quadratic(np.array([0.3, 1.0, 2.0])),
    "log-cosh": log_cosh(2.0),
    "redescending": redescending(2.0),
}
GRID = [(P, r) for P, r in product((2, 20), (0.05, 0.1, 0.4, 1.0))]


def run(objective: SyntheticObjective, setting: Setting) -> tuple[Outcome, Constants]:
    """A run, and the constants that hold for it (G from the path where it holds only there)."""
    outcome = measure(objective, START, setting)
    slope = objective.largest_slope
    G = outcome.largest_gradient
    if slope is not None:
        G = slope * np.sqrt(len(START)) + setting.sigma
        assert outcome.largest_gradient <= G
    return outcome, Constants(
        objective.smoothness,
        setting.sigma**2,
        G,
        float(objective.value(START)),
        objective.strong_convexity,
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_prlc_lies_under_theorem1_and_the_proved_bounds(name: str) -> None:
    objective = OBJECTIVES[name]
    L = objective.smoothness
    tightest = 0.0
    for (P, r), share in product(GRID, (0.3, 1.0)):
        step = share * float(theory.theorem1_step_limit(r, L))
        outcome, known = run(objective, Setting("prlc", step, r, P, 250, runs=40))
        where = step, r, P, 250, known
        bounds = [theory.theorem1_bound, theory.prlc_bounded_bound, theory.prlc_iid_bound]
        if name != "redescending":
            bounds.append(theory.prlc_convex_bound)
        smallest = min(float(bound(*where)) for bound in bounds)
        assert outcome.mean_squared_gradient <= smallest, (P, r, share)
        tightest = max(tightest, outcome.mean_squared_gradient / smallest)
    assert tightest > 0.2  # a bound some five times as small would have been caught


@pytest.mark.parametrize("name", OBJECTIVES)
def test_prlc_with_the_largest_step_lies_under_the_bounded_gradient_bound(name: str) -> None:
    """eta = 1/L, far above Theorem 1's limit at low r."""
    objective = OBJECTIVES[name]
    step = 1 / objective.smoothness
    for P, r in GRID:
        outcome, known = run(objective, Setting("prlc", step, r, P, 250, runs=40))
        where = step, r, P, 250, known
        assert outcome.mean_squared_gradient <= theory.prlc_bounded_bound(*where), (P, r)
        if name != "redescending":
            assert outcome.mean_squared_gradient <= theory.prlc_convex_bound(*where), (P, r)


def test_the_gap_lies_under_theorem5() -> None:
    objective = OBJECTIVES["quadratic"]
    times = np.array([1, 2, 5, 20, 80, 249])
    for (P, r), share in product(GRID, (0.3, 1.0)):
        step = share * float(theory.theorem5_step_limit(r, objective.smoothness))
        outcome, known = run(objective, Setting("prlc", step, r, P, 250, runs=100))
        where = step, r, P, times, known
        for bound in (
            theory.theorem5_bound,
            theory.strongly_convex_bounded_bound,
            theory.strongly_convex_iid_bound,
        ):
            assert (outcome.gaps[times] <= np.asarray(bound(*where))).all(), (P, r, share)


# ---- exact: the moment recursion stands in for infinitely many runs ----------------------------

L = 1.0
H = np.array([0.05, 0.3, 1.0])[:, None, None, None]  # curvatures up to L
SHARES = np.array([0.05, 0.3, 1.0])[:, None, None]
P_GRID = np.array([1, 4, 20, 100])[:, None]
R_GRID = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9, 1.0])


def exact_squares(method: PullMethod, step: Array, ratios: Array, T: int) -> Array:
    """E|grad F(w_t)|^2 at t = 1..T+1 from w_1 = 1, with sigma = 1."""
    path = theory.moment_path(method, step * H, ratios, P_GRID, T, start=1.0, noise=step**2)
    return np.asarray(H**2 * path[..., 0])


@pytest.mark.parametrize("iterations", [10, 1000])
def test_pr_lies_under_its_bound_for_every_ratio(iterations: int) -> None:
    step = SHARES * np.asarray(theory.pr_step_limit(R_GRID))
    measured = exact_squares("pr", step, R_GRID, iterations)[:iterations].mean(0)
    ratios = [
        measured[i] / theory.pr_bound(step, R_GRID, P_GRID, iterations, known)
        for i, known in enumerate(Constants(L, 1.0, None, float(h) / 2) for h in H.flat)
    ]
    assert np.max(ratios) <= 1
    assert np.max(ratios) > 0.3


def test_pr_lies_under_theorem3() -> None:
    high = np.array([0.51, 0.6, 0.8, 1.0])
    step = SHARES * np.asarray(theory.theorem3_step_limit(high))
    measured = exact_squares("pr", step, high, 500)[:500].mean(0)
    for i, h in enumerate(H.flat):
        known = Constants(L, 1.0, None, float(h) / 2)
        assert (measured[i] <= theory.theorem3_bound(step, high, P_GRID, 500, known)).all()


@pytest.mark.parametrize("iterations", [10, 1000])
def test_prlc_lies_under_the_convex_and_the_strongly_convex_bound(iterations: int) -> None:
    step = SHARES * np.ones_like(R_GRID)
    squares = exact_squares("prlc", step, R_GRID, iterations)
    ratios = []
    for i, h in enumerate(H.flat):
        known = Constants(L, 1.0, None, float(h) / 2, float(h))
        where = step, R_GRID, P_GRID, iterations, known
        ratios.append(squares[:iterations, i].mean(0) / theory.prlc_convex_bound(*where))
        gap = squares[iterations, i] / (2 * h)
        assert (gap <= np.asarray(theory.strongly_convex_iid_bound(*where))).all()
    assert np.max(ratios) <= 1
    assert np.max(ratios) > 0.3


def test_pr_breaks_at_a_low_ratio_where_prlc_does_not() -> None:
    """P = 20, eta L = 0.5, r = 0.01: the limit of PR is 0.2."""
    objective = quadratic(np.array([1.0, 1.0]))
    start = np.array([1.0, 1.0])
    outcomes = {
        (method, r): measure(objective, start, Setting(method, 0.5, r, 20, 600, runs=30))
        for method, r in (("prlc", 0.01), ("pr", 0.01), ("prlc", 1.0))
    }
    sgd = outcomes["prlc", 1.0].gaps[300:].mean()
    assert outcomes["prlc", 0.01].gaps[300:].mean() < 2 * sgd
    assert outcomes["pr", 0.01].gaps[300:].mean() > 1000 * sgd
