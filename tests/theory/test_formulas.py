"""Every formula against the condition or the sum that it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from prlc import theory
from prlc.theory import Constants
from prlc.theory.quantities import PullPattern

RATIOS = np.array([1e-6, 0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-9, 1.0])
HIGH = np.array([0.5 + 1e-9, 0.51, 0.6, 0.75, 0.9, 0.999, 1.0])

r, eta, L, G, P, T, sigma2, gap, mu = sp.symbols("r eta L G P T sigma2 Delta mu", positive=True)
c_r = (1 - r) * (2 - r)

ratios = st.floats(1e-4, 1.0)
scales = st.floats(1e-3, 1e3)


def values(**numbers: float) -> dict[sp.Symbol, float]:
    names = {"r": r, "eta": eta, "L": L, "G": G, "P": P, "T": T, "s": sigma2, "D": gap, "mu": mu}
    return {names[key]: value for key, value in numbers.items()}


GAPS = (
    theory.theorem5_bound,
    theory.strongly_convex_bounded_bound,
    theory.strongly_convex_iid_bound,
)

POINTS = [
    {"r": 0.1, "eta": 0.01, "L": 2.0, "G": 3.0, "P": 4.0, "T": 50.0, "s": 1.5, "D": 5.0},
    {"r": 0.8, "eta": 0.05, "L": 0.7, "G": 0.2, "P": 20.0, "T": 7.0, "s": 0.1, "D": 0.3},
    {"r": 1.0, "eta": 0.05, "L": 0.7, "G": 0.2, "P": 1.0, "T": 7.0, "s": 0.1, "D": 0.3},
]


def constants(point: dict[str, float]) -> Constants:
    return Constants(point["L"], point["s"], point["G"], point["D"])


# ---- ages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("iteration", [1, 2, 7, 3000])
def test_age_distribution_is_one_and_its_moments_grow_to_the_limit(
    ratio: float, iteration: int
) -> None:
    chances = theory.age_distribution(ratio, iteration)
    ages = np.arange(iteration)
    assert chances.sum() == pytest.approx(1, rel=1e-12)
    assert chances @ ages <= float(theory.age_mean(ratio)) + 1e-9
    assert chances @ ages**2 <= float(theory.age_second_moment(ratio)) + 1e-9
    if iteration == 3000:
        assert chances @ ages == pytest.approx(theory.age_mean(ratio), rel=1e-9)
        assert chances @ ages**2 == pytest.approx(theory.age_second_moment(ratio), rel=1e-9)


def test_age_moments_are_geometric_sums() -> None:
    q = sp.Symbol("q", positive=True)
    mean = sp.simplify((1 - q) * sp.diff(1 / (1 - q), q) * q)
    second = sp.simplify((1 - q) * q * sp.diff(q * sp.diff(1 / (1 - q), q), q))
    assert sp.simplify(mean.subs(q, 1 - r) - (1 - r) / r) == 0
    assert sp.simplify(second.subs(q, 1 - r) - c_r / r**2) == 0


@pytest.mark.parametrize("period", [1, 2, 3, 10, 49])
def test_periodic_pulls_halve_the_mean_age_and_cut_its_square_to_a_sixth(period: int) -> None:
    ages = np.arange(period)
    assert theory.age_mean(1 / period, "periodic") == pytest.approx(ages.mean())
    assert theory.age_second_moment(1 / period, "periodic") == pytest.approx((ages**2).mean())
    assert theory.age_mean(1 / period, "periodic") == pytest.approx(
        np.asarray(theory.age_mean(1 / period)) / 2
    )


# ---- Theorems 1 and 2 -------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_theorem1_constants_follow_from_the_descent_line(point: dict[str, float]) -> None:
    """Lemma 2 summed over t, and Lemma 1 as its proof ends, put into the descent inequality."""
    X = sp.Symbol("X")  # E|sum_i grad F(w_i)|^2
    sum_of_g = 2 * P * sigma2 + 2 * X
    gradient_gap = 4 * eta**2 * L**2 * c_r / r**2 * (G**2 + sum_of_g / P**2)
    step = sp.expand(
        (2 * L * eta**2 - eta) / (2 * P**2) * X + L * eta**2 * sigma2 / P + eta / 2 * gradient_gap
    )
    at = values(**point)
    B = step.coeff(X, 1).subs(at)
    A = (step.coeff(X, 0) / eta).subs(at)
    ours = point["eta"], point["r"], point["P"]
    assert theory.theorem1_a(*ours, constants(point)) == pytest.approx(float(A), rel=1e-12)
    assert theory.theorem1_b(*ours, point["L"]) == pytest.approx(float(B), rel=1e-12)


def test_theorem1_step_limit_is_the_root_of_b() -> None:
    root = r / (2 * L * (2 - r))
    condition = 8 * eta**2 * L**2 * c_r + (2 * L * eta - 1) * r**2
    assert sp.simplify(condition.subs(eta, root)) == 0
    for smoothness in (0.1, 1.0, 30.0):
        limit = np.asarray(theory.theorem1_step_limit(RATIOS, smoothness))
        assert (np.asarray(theory.theorem1_b(0.999 * limit, RATIOS, 4, smoothness)) < 0).all()
        assert (np.asarray(theory.theorem1_b(1.001 * limit, RATIOS, 4, smoothness)) > 0).all()


def test_theorem2_step_minimises_the_first_order_part() -> None:
    first_order = 2 * gap / (eta * T) + 2 * L * eta * sigma2 / P
    best = sp.sqrt(gap * P / (L * sigma2 * T))
    assert sp.simplify(sp.diff(first_order, eta).subs(eta, best)) == 0
    assert sp.simplify(first_order.subs(eta, best) - 4 * sp.sqrt(gap * L * sigma2 / (P * T))) == 0


@pytest.mark.parametrize("ratio", [0.05, 0.4, 1.0])
def test_theorem2_is_theorem1_at_its_step_size(ratio: float) -> None:
    known = Constants(2.0, 1.5, 3.0, 5.0)
    smallest = np.asarray(theory.theorem2_min_iterations(ratio, 20, known))
    T_ = smallest * np.array([1.0, 2.0, 100.0])
    step = np.asarray(theory.theorem2_step(20, T_, known))
    assert step[0] == pytest.approx(theory.theorem1_step_limit(ratio, 2.0))
    np.testing.assert_allclose(
        theory.theorem2_bound(ratio, 20, T_, known),
        theory.theorem1_bound(step, ratio, 20, T_, known),
        rtol=1e-12,
    )


def test_theorem2_speedup_is_where_the_two_terms_are_equal() -> None:
    known = Constants(2.0, 1.5, 3.0, 5.0)
    at = np.asarray(theory.theorem2_speedup_iterations([0.1, 0.4], 20, known))
    leading = 4 * np.sqrt(5.0 * 2.0 * 1.5 / (20 * at))
    np.testing.assert_allclose(theory.theorem2_bound([0.1, 0.4], 20, at, known), 2 * leading)


# ---- Theorem 3 and PR -------------------------------------------------------------------------


def test_theorem3_step_limit_is_the_root_of_h() -> None:
    root = 1 / (L * (1 + sp.sqrt((3 - 2 * r) / (2 * r - 1))))
    condition = 4 * eta**2 * L**2 * (1 - r) / (2 * r - 1) + 2 * L * eta - 1
    for ratio in (sp.Rational(51, 100), sp.Rational(3, 4), sp.Integer(1)):
        assert sp.simplify(condition.subs(eta, root).subs(r, ratio)) == 0
    for smoothness in (0.1, 1.0, 30.0):
        limit = np.asarray(theory.theorem3_step_limit(HIGH, smoothness))
        assert (np.asarray(theory.theorem3_h(0.999 * limit, HIGH, 4, smoothness)) < 0).all()
        assert (np.asarray(theory.theorem3_h(1.001 * limit, HIGH, 4, smoothness)) > 0).all()


@pytest.mark.parametrize("iterations", [1, 2, 3, 10, 300, 20_000])
def test_theorem3_bracket_is_the_double_sum(iterations: int) -> None:
    near_half = 0.5 + np.array([0, 1e-14, 1e-9, 1e-7, 1e-5, 2e-5, 1e-4, 4e-4, 6e-4, 1e-3, 6e-3])
    ratio = np.concatenate((near_half, [0.6, 0.9, 1.0]))
    k = np.arange(1, iterations)
    double_sum = ((iterations - k) * (2 * (1 - ratio[:, None])) ** k).sum(1) / (2 * iterations)
    ours = theory.theorem3_bracket(ratio, iterations)
    np.testing.assert_allclose(ours, double_sum, rtol=1e-9, atol=1e-15)


def test_theorem3_bracket_of_a_few_steps_symbolically() -> None:
    closed = (1 - r) / (2 * r - 1) - (1 - r) * (1 - (2 - 2 * r) ** T) / ((2 * r - 1) ** 2 * T)
    for steps in (1, 2, 5):
        total = sum((steps - k) * (2 - 2 * r) ** k for k in range(1, steps)) / (
            2 * sp.Integer(steps)
        )
        assert sp.simplify(closed.subs(T, steps) - total) == 0


@pytest.mark.parametrize("point", POINTS[1:])
def test_theorem3_bound_follows_from_its_proof(point: dict[str, float]) -> None:
    """The recursion of the lemma, E|e_t|^2 <= sum_k (2(1-r))^k eta^2 E|gbar_{t-k}|^2, summed."""
    steps = int(point["T"])
    S, n, x = 0.0, point["P"], 2 * (1 - point["r"])
    noise = 2 * point["s"] / n  # E|gbar|^2 <= 2 sigma^2/P + 2 |mean grad|^2
    for t in range(1, steps + 1):
        missed = sum(x**k for k in range(1, steps - t + 1))
        S += point["eta"] ** 3 / 2 * point["L"] ** 2 * missed * noise
        S += point["L"] * point["eta"] ** 2 / 2 * noise
    expected = 2 / (point["eta"] * steps) * (point["D"] + S)
    ours = theory.theorem3_bound(point["eta"], point["r"], n, steps, constants(point))
    assert ours == pytest.approx(expected, rel=1e-12)


def test_pr_kappa_is_the_squared_geometric_sum() -> None:
    small = RATIOS[1:]
    q = np.sqrt(1 - small)
    total = (q[:, None] ** np.arange(1, 20_000)).sum(1)
    np.testing.assert_allclose(theory.pr_kappa(small), total**2, rtol=1e-9, atol=1e-30)
    assert theory.pr_kappa(1e-6) == pytest.approx(4e12, rel=1e-5)


def test_pr_step_limit_is_the_root_of_its_condition() -> None:
    for smoothness in (0.1, 1.0, 30.0):
        x = np.asarray(theory.pr_step_limit(RATIOS, smoothness)) * smoothness
        np.testing.assert_allclose(x + np.asarray(theory.pr_kappa(RATIOS)) * x**2, 1, rtol=1e-9)
    assert theory.pr_step_limit(1e-6) == pytest.approx(0.5e-6, rel=1e-5)


def test_pr_bound_is_the_fixed_point_of_its_recursion() -> None:
    """sqrt(E|e_t|^2) <= sqrt(1-r) (sqrt(E|e_{t-1}|^2) + eta sqrt(sigma^2/P)), at rest."""
    eta_, smoothness, variance, workers = 0.002, 2.0, 1.5, 4
    known = Constants(smoothness, variance, None, 5.0)
    for ratio in (0.01, 0.3, 1.0):
        e = 0.0
        for _ in range(10_000):
            e = np.sqrt(1 - ratio) * (e + eta_ * np.sqrt(variance / workers))
        expected = 2 * 5.0 / (eta_ * 10) + smoothness * eta_ * variance / workers
        ours = theory.pr_bound(eta_, ratio, workers, 10, known)
        assert ours == pytest.approx(expected + smoothness**2 * e**2, rel=1e-9)


# ---- the proved bounds, ASGD, Theorem 5 -------------------------------------------------------


@pytest.mark.parametrize("ratio", [1e-9, 0.01, 0.3, 0.9, 1.0])
def test_iid_bound_is_the_fixed_point_of_its_recursion(ratio: float) -> None:
    known = Constants(2.0, 1.5, None, 0.0)
    step = 0.7 * float(theory.prlc_iid_step_limit(ratio, 2.0))
    bound = float(theory.prlc_iid_bound(step, ratio, 4, 10, known))
    spread = (bound - 2.0 * step * 1.5 / 4) / 2.0**2
    again = (1 - ratio) * ((1 + step * 2.0) ** 2 * spread + step**2 * 1.5 * (1 - 1 / 4))
    assert spread == pytest.approx(again, rel=1e-6, abs=1e-12 * bound)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_convex_bound_is_the_fixed_point_of_its_recursion(ratio: float) -> None:
    known = Constants(2.0, 1.5, None, 5.0)
    spread = 0.0
    for _ in range(5000):
        spread = (1 - ratio) * (spread + 0.1**2 * 1.5 * (1 - 1 / 4))
    expected = 2 * 5.0 / (0.1 * 10) + 2.0 * 0.1 * 1.5 / 4 + 2.0**2 * spread
    assert theory.prlc_convex_bound(0.1, ratio, 4, 10, known) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["coin", "periodic"])
def test_bounded_bound_is_the_worst_drift(schedule: PullPattern) -> None:
    """Worker 1 always pushes G, the others -G: after k steps it is eta k 2 (1-1/P) G away."""
    workers, slope, step, period = 5, 3.0, 0.1, 4
    g = np.array([slope] + [-slope] * (workers - 1))
    drift = step * abs(g[0] - g.mean())
    ages = np.arange(period)
    mean_square = (ages**2).mean() if schedule == "periodic" else (period - 1) * (2 * period - 1)
    known = Constants(2.0, 1.5, slope, 5.0)
    ours = theory.prlc_bounded_bound(step, 1 / period, workers, 10, known, schedule=schedule)
    expected = 2 * 5.0 / (step * 10) + 2.0 * step * 1.5 / workers + 2.0**2 * drift**2 * mean_square
    assert ours == pytest.approx(expected)


def test_iid_step_limit_is_where_the_spread_stops_shrinking() -> None:
    inner = RATIOS[(RATIOS < 0.75)]
    x = np.asarray(theory.prlc_iid_step_limit(inner, 3.0)) * 3.0
    np.testing.assert_allclose((1 - inner) * (1 + x) ** 2, 1, rtol=1e-9)
    np.testing.assert_allclose(theory.prlc_iid_step_limit([0.75, 0.9, 1.0], 2.0), 0.5)
    assert (np.asarray(theory.prlc_iid_step_limit(RATIOS)) > RATIOS / 4).all()
    at_limit = theory.prlc_iid_step_limit(0.5)
    assert theory.prlc_iid_bound(at_limit, 0.5, 4, 10, Constants(1.0, 1.0, None, 1.0)) > 1e12


@given(ratios, st.integers(1, 200), scales, scales, scales)
def test_proved_bounds_imply_theorem1(
    ratio: float, workers: int, smoothness: float, variance: float, slope: float
) -> None:
    known = Constants(smoothness, variance, slope, 0.0)
    step = theory.theorem1_step_limit(ratio, smoothness)
    printed = theory.theorem1_bound(step, ratio, workers, 100, known)
    assert theory.prlc_bounded_bound(step, ratio, workers, 100, known) <= printed


@given(ratios, st.integers(1, 200), scales, scales, scales, st.floats(0.01, 1))
def test_pr_bound_is_below_theorem1(
    ratio: float, workers: int, smoothness: float, variance: float, slope: float, share: float
) -> None:
    """Comparing bounds, PR looks better than PRLC: so bounds do not decide between the two."""
    known = Constants(smoothness, variance, slope, 0.0)
    step = share * np.asarray(theory.theorem1_step_limit(ratio, smoothness))
    compensated = theory.theorem1_bound(step, ratio, workers, 100, known)
    assert theory.pr_bound(step, ratio, workers, 100, known) < compensated


@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_proved_d_is_a_step_of_the_descent(ratio: float) -> None:
    """(eta/2) (L eta sigma^2/P + L^2 V), the part of the general bounds that T does not shrink."""
    known = Constants(2.0, 1.5, 3.0, 0.0, 0.4)
    for d, bound in (
        (theory.strongly_convex_bounded_d, theory.prlc_bounded_bound),
        (theory.strongly_convex_iid_d, theory.prlc_convex_bound),
    ):
        settled = np.asarray(bound(0.1, ratio, 4, 1, known))
        assert d(0.1, ratio, 4, known) == pytest.approx(0.1 / 2 * settled, rel=1e-12)


@given(ratios, st.integers(1, 200), scales)
def test_proved_d_is_below_theorem5_d(ratio: float, workers: int, smoothness: float) -> None:
    known = Constants(smoothness, 1.0, 1.0, 1.0, smoothness)
    step = theory.theorem5_step_limit(ratio, smoothness)
    derived = theory.theorem5_d(step, ratio, workers, known)
    assert theory.strongly_convex_bounded_d(step, ratio, workers, known) <= derived


def test_asgd_step_limit_is_the_root_of_its_condition() -> None:
    S = np.array([1, 2, 20, 1000])
    x = np.asarray(theory.asgd_step_limit(S, 3.0)) * 3.0
    np.testing.assert_allclose(x + 2 * S**2 * x**2, 1, rtol=1e-12)
    whole = np.asarray(theory.asgd_equal_work_step_limit(S))
    assert (np.diff(whole) > 0).all()
    assert whole[0] == pytest.approx(0.5)
    assert whole[-1] == pytest.approx(np.sqrt(0.5), rel=1e-3)


@pytest.mark.parametrize("point", POINTS)
def test_asgd_at_equal_work(point: dict[str, float]) -> None:
    single = 2 * gap / (T * eta) + eta * (L * sigma2 + 2 * L**2 * sigma2 * P * eta)
    batch = single.subs({eta: eta / P, T: P * T}, simultaneous=True)
    expected = 2 * gap / (eta * T) + L * eta * sigma2 / P + 2 * L**2 * eta**2 * sigma2 / P
    assert sp.simplify(batch - expected) == 0
    ours = theory.asgd_equal_work_bound(point["eta"], point["P"], point["T"], constants(point))
    assert ours == pytest.approx(float(expected.subs(values(**point))), rel=1e-12)


@pytest.mark.parametrize("bound", [theory.theorem5_bound, theory.strongly_convex_bounded_bound])
@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_strongly_convex_bounds_are_the_recursion_of_the_gap(
    bound: Callable[..., Any], ratio: float
) -> None:
    known = Constants(2.0, 1.5, 3.0, 5.0, 0.4)
    derived = bound is theory.theorem5_bound
    d = theory.theorem5_d if derived else theory.strongly_convex_bounded_d
    D = float(d(0.02, ratio, 4, known))
    left = 5.0
    for _ in range(37):
        left = (1 - 0.02 * 0.4) * left + D
    assert bound(0.02, ratio, 4, 37, known) == pytest.approx(left)


# ---- laws that hold for all of them -----------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        theory.theorem1_step_limit,
        theory.theorem3_step_limit,
        theory.theorem5_step_limit,
        theory.pr_step_limit,
        theory.prlc_iid_step_limit,
    ],
)
def test_step_limits_grow_with_r_and_scale_as_one_over_l(limit: Callable[..., Any]) -> None:
    grid = np.linspace(0.501, 1, 200)
    steps = limit(grid)
    assert (np.diff(steps) >= 0).all()
    assert steps[-1] > steps[0]
    np.testing.assert_allclose(limit(grid, 8.0), steps / 8)


def test_limits_at_r_equal_to_one() -> None:
    assert theory.theorem1_step_limit(1.0, 2.0) == 0.25
    assert theory.theorem3_step_limit(1.0, 2.0) == 0.25
    assert theory.pr_step_limit(1.0, 2.0) == 0.5
    assert theory.prlc_iid_step_limit(1.0, 2.0) == 0.5
    assert theory.pr_kappa(1.0) == 0
    assert theory.age_second_moment(1.0) == 0
    assert theory.theorem3_bracket(1.0, 50) == 0
    known = Constants(2.0, 1.5, 3.0, 5.0, 0.4)
    sgd = 2 * 5.0 / (0.1 * 50) + 2.0 * 0.1 * 1.5 / 4
    for bound in (
        theory.prlc_bounded_bound,
        theory.prlc_iid_bound,
        theory.prlc_convex_bound,
        theory.pr_bound,
    ):
        assert bound(0.1, 1.0, 4, 50, known) == pytest.approx(sgd, rel=1e-14)


@pytest.mark.parametrize(
    "bound",
    [
        theory.theorem1_bound,
        theory.theorem3_bound,
        theory.theorem5_bound,
        theory.prlc_bounded_bound,
        theory.prlc_iid_bound,
        theory.prlc_convex_bound,
        theory.pr_bound,
        theory.strongly_convex_bounded_bound,
        theory.strongly_convex_iid_bound,
    ],
)
def test_bounds_fall_as_more_is_pulled_and_scale_with_the_objective(
    bound: Callable[..., Any],
) -> None:
    known = Constants(2.0, 1.5, 3.0, 5.0, 0.4)
    grid = np.linspace(0.55, 1, 50)
    step = 0.5 * float(theory.theorem3_step_limit(0.55, 2.0))
    values_ = bound(step, grid, 4, 500, known)
    assert (np.diff(values_) < 0).all()
    # F -> s F with eta -> eta/s: the gap scales by s, the squared gradient by s^2.
    s = 7.0
    scaled = Constants(2.0 * s, 1.5 * s**2, 3.0 * s, 5.0 * s, 0.4 * s)
    power = 1 if bound in GAPS else 2
    again = bound(step / s, grid, 4, 500, scaled)
    np.testing.assert_allclose(again, values_ * s**power, rtol=1e-10)


def test_how_the_noise_terms_scale_with_workers() -> None:
    """Noise falls as 1/P; the drift term of PRLC does not fall with P, that of PR and ASGD does."""
    known = Constants(1.0, 1.0, 1.0, 0.0)
    one, many = (np.asarray(theory.pr_bound(0.01, 0.5, p, 10, known)) for p in (1, 100))
    assert one / many == pytest.approx(100)
    one, many = (np.asarray(theory.asgd_equal_work_bound(0.1, p, 10, known)) for p in (1, 100))
    assert one / many == pytest.approx(100)
    huge = theory.prlc_bounded_bound(0.01, 0.5, 1e12, 10, known)
    assert huge == pytest.approx(4 * 0.01**2 * theory.age_second_moment(0.5), rel=1e-6)
    alone = theory.prlc_bounded_bound(0.01, 0.5, 1, 10, known)
    assert alone == pytest.approx(0.01)  # one worker has nobody to drift from
