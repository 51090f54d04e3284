"""Each place where the paper's printed form differs from what its proof gives, shown.

`test_erratum_...` shows that a printed statement is wrong; `test_printed_...` that it is right,
only written in a form that breaks at r = 1.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import sympy as sp  # type: ignore[import-untyped]

from prlc import theory
from prlc.theory import Constants, printed

from .montecarlo import Setting, iterate, log_cosh, measure, quadratic


def test_the_printed_forms_are_those_of_the_paper() -> None:
    """Each printed expression, copied from the paper a second time, at one generic point."""
    r, eta, L, G, P, T, s2 = 0.7, 0.03, 2.5, 1.3, 6.0, 9.0, 0.8
    known = Constants(L, s2, G, 1.0)
    c = (1 - r) * (2 - r)
    pairs = [
        (printed.lemma1_bound([[1.0, 2.0], [3.0, 0.5]], s2), 2 * 2 * s2 + 2 * (5 + 9.25)),
        (printed.theorem3_step_limit(r, L),
         (-4 * L + (16 * L**2 + 32 * L * (1 - r)) ** 0.5) / (16 * L * (1 - r))),
        (printed.theorem3_noise(eta, r, P, T, known),
         4 * eta**2 * L * s2 / P
         * ((1 - r) / (2 * r - 1) - (1 - r) * (1 - 2**T * (1 - r) ** T) / ((2 * r - 1) ** 2 * T))),
        (printed.theorem5_step_limit(r, P, L),
         (-(r**2) + 2 * r * (r**2 + 16 * P * c) ** 0.5) / (8 * P * L * c)),
        (printed.theorem5_d(eta, r, P, known),
         (2 * eta**2 * L**2 * c * (eta * P**2 * G**2 + 2 * s2) + 2 * eta**2 * s2 * r**2)
         / (P * r**2)),
        (printed.theorem5_d_appendix(eta, r, P, known),
         2 * eta**2 * s2 / P + 2 * eta**3 * L**2 * G**2 * c / r**2
         + 4 * eta**2 * L**2 * s2 * c / (P * r**2)),
        (printed.theorem5_h(eta, r, P, L),
         (2 * L * eta**2 - eta) / (2 * P**2) + 4 * eta**3 * L**2 * c / (P * r**2)),
    ]  # fmt: skip
    for ours, paper in pairs:
        assert ours == pytest.approx(paper, rel=1e-12)


def test_erratum_global_recursion_has_the_step_size_twice() -> None:
    """Equation (3): w_t = w_{t-k} - eta/P sum sum g, not eta^2/P."""
    steps = list(iterate(log_cosh(1.0), np.ones(2), Setting("prlc", 0.1, 0.3, 4, 6, runs=1)))
    moved = steps[0][0] - steps[5][0]
    total = sum(g.mean(1) for _, _, g, _ in steps[:5])
    np.testing.assert_allclose(moved, 0.1 * total)
    assert not np.allclose(moved, 0.1**2 * total)


@pytest.mark.parametrize(("ratio", "iteration"), [(0.1, 1), (0.1, 5), (0.4, 3)])
def test_erratum_age_distribution_does_not_sum_to_one(ratio: float, iteration: int) -> None:
    total = printed.age_distribution(ratio, iteration).sum()
    assert total == pytest.approx(1 - (1 - ratio) ** iteration)
    assert total < 0.9
    assert theory.age_distribution(ratio, iteration).sum() == pytest.approx(1)


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_erratum_lemma1_fails_from_three_workers_on(workers: int) -> None:
    """Equal gradients, no noise: |sum g|^2 = P^2 |g|^2, but the lemma says at most 2 P |g|^2."""
    gradients = np.ones((workers, 5))
    left = (gradients.sum(0) ** 2).sum()
    assert (left > printed.lemma1_bound(gradients, 0.0)) == (workers >= 3)


def test_erratum_lemma1_factor_two_is_not_needed() -> None:
    """E|sum g|^2 = sum of variances + |sum of means|^2 exactly, by independence."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((6, 3))
    noise = rng.standard_normal((200_000, 6, 3))
    left = (((means + noise).sum(1)) ** 2).sum(1)
    exact = 6 * 3 + (means.sum(0) ** 2).sum()
    assert abs(left.mean() - exact) < 4 * left.std() / np.sqrt(len(left))


def test_erratum_lemma2_ages_are_not_independent_of_the_gradients() -> None:
    """Exact, on w^2/2 with two workers: E|sum_i w_i|^2 depends on the coins of worker 1.

    Lemma 2 multiplies P[k = l] by an expectation over all coins, as if it did not.
    """
    a, r, P, T = 1.0, 0.3, 2, 5
    average = given_old = chance_old = 0.0
    for flips in product((False, True), repeat=P * T):
        pulls = np.array(flips).reshape(T, P)
        chance = float(np.where(pulls, r, 1 - r).prod())
        cov = np.zeros((P + 1, P + 1))  # of (w, w_1, ..., w_P), given the coins
        for t in range(T):
            seen = cov[1:, 1:].sum()
            move, noise = np.eye(P + 1), np.zeros((P + 1, P))
            move[0, 1:], noise[0] = -a / P, -1 / P
            for i in range(P):
                move[i + 1, i + 1], noise[i + 1, i] = 1 - a, -1
                if pulls[t, i]:
                    move[i + 1], noise[i + 1] = move[0], noise[0]
            cov = move @ cov @ move.T + noise @ noise.T
        average += chance * seen  # E|sum w_i|^2 at the last iteration
        if not pulls[:, 0].any():
            given_old += chance * seen
            chance_old += chance
    assert given_old / chance_old < 0.96 * average


def test_printed_theorem1_step_is_the_simple_one() -> None:
    r = sp.Symbol("r", positive=True)
    assert sp.expand(r**2 + 8 * (1 - r) * (2 - r) - (4 - 3 * r) ** 2) == 0
    ratios = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    np.testing.assert_allclose(
        printed.theorem1_step_limit(ratios, 3.0),
        theory.theorem1_step_limit(ratios, 3.0),
        rtol=1e-10,
    )
    assert np.isnan(printed.theorem1_step_limit(1.0))
    assert theory.theorem1_step_limit(1.0) == 0.5
    near = 1 - 1e-8
    off = np.asarray(printed.theorem1_step_limit(near)) / theory.theorem1_step_limit(near)
    assert abs(off - 1) > 1e-10  # and half of the digits are lost on the way there


def test_printed_theorem2_iterations_are_the_simple_ones() -> None:
    known = Constants(3.0, 1.5, 1.0, 5.0)
    ratios = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    np.testing.assert_allclose(
        printed.theorem2_min_iterations(ratios, 20, known),
        theory.theorem2_min_iterations(ratios, 20, known),
        rtol=1e-10,
    )
    assert np.isnan(printed.theorem2_min_iterations(1.0, 20, known))
    assert theory.theorem2_min_iterations(1.0, 20, known) == pytest.approx(4 * 5 * 3 * 20 / 1.5)


@pytest.mark.parametrize(
    ("ratio", "smoothness", "root", "shown"),
    [(0.51, 1.0, 0.0913, 0.2077), (0.51, 10.0, 0.00913, 0.0244), (0.55, 1.0, 0.1866, 0.2102)],
)
def test_erratum_theorem3_step_admits_positive_h(
    ratio: float, smoothness: float, root: float, shown: float
) -> None:
    claimed = printed.theorem3_step_limit(ratio, smoothness)
    assert claimed == pytest.approx(shown, rel=5e-3)
    assert theory.theorem3_step_limit(ratio, smoothness) == pytest.approx(root, rel=5e-3)
    assert theory.theorem3_h(claimed, ratio, 4, smoothness) > 0


def test_erratum_theorem3_step_is_not_one_over_l() -> None:
    """Ten times the curvature must allow a tenth of the step."""
    shrink = np.asarray(printed.theorem3_step_limit(0.6, 10.0)) / printed.theorem3_step_limit(0.6)
    assert abs(shrink - 0.1) > 0.01
    near = printed.theorem3_step_limit(1 - 1e-7)
    assert near == pytest.approx(0.25, rel=1e-3)  # and half of the true limit at r = 1
    assert theory.theorem3_step_limit(1.0) == 0.5


def test_erratum_theorem3_noise_misses_a_factor_l() -> None:
    """F -> s F with eta -> eta/s scales a squared gradient by s^2; the printed term by s."""
    base, scaled = Constants(1.0, 1.0, None, 0.0), Constants(10.0, 100.0, None, 0.0)
    first = np.asarray(printed.theorem3_noise(0.1, 0.8, 4, 50, base))
    assert printed.theorem3_noise(0.01, 0.8, 4, 50, scaled) == pytest.approx(10 * first)
    noise = [
        np.asarray(theory.theorem3_bound(eta, 0.8, 4, 50, known))
        for eta, known in ((0.1, base), (0.01, scaled))
    ]
    assert noise[1] == pytest.approx(100 * noise[0])
    # At L = 1 the two are the same term.
    assert noise[0] - 2 * 0.1 / 4 == pytest.approx(first)


def test_erratum_theorem3_needs_r_above_a_half() -> None:
    """At r = 1/2 the bracket is (T-1)/4: it grows with T, and no step size is left."""
    assert theory.theorem3_bracket(0.5, 1001) == pytest.approx(250)
    assert theory.theorem3_step_limit(0.5 + 1e-10) < 1e-4


def test_erratum_pr_needs_no_r_above_a_half() -> None:
    """The same method, bounded by Minkowski's inequality instead of (a+b)^2 <= 2a^2 + 2b^2."""
    ratios = np.array([0.02, 0.1, 0.3, 0.5])
    assert (np.asarray(theory.pr_step_limit(ratios)) > ratios / 2).all()
    # Where both bounds hold, at the steps of Theorem 3, the one for every r is the smaller.
    high = np.linspace(0.51, 1, 50)
    step = theory.theorem3_step_limit(high)
    known = Constants(1.0, 1.0, None, 1.0)
    assert (np.asarray(theory.pr_step_limit(high)) > step).all()
    low = theory.pr_bound(step, high, 4, 10_000, known)
    assert (np.asarray(low) < theory.theorem3_bound(step, high, 4, 10_000, known)).all()


def test_erratum_theorem5_d_differs_between_theorem_and_proof() -> None:
    known = Constants(2.0, 1.0, 3.0, 1.0)
    r, P, eta = 0.3, 20, 0.01
    gap = np.asarray(printed.theorem5_d(eta, r, P, known)) - np.asarray(
        printed.theorem5_d_appendix(eta, r, P, known)
    )
    assert gap == pytest.approx(2 * 3.0**2 * 2.0**2 * eta**3 * (P - 1) * (1 - r) * (2 - r) / r**2)
    assert gap > 0.5 * np.asarray(printed.theorem5_d_appendix(eta, r, P, known))


def test_erratum_theorem5_floor_is_violated() -> None:
    """r = 1, F = 10 w^2 (L = mu = 20), eta = 1/(2L): SGD itself stays above the printed floor."""
    L, P, sigma2, eta = 20.0, 4, 1.0, 1 / 40
    floor = L / 2 * sigma2 * eta**2 * np.asarray(theory.noise_floor("prlc", eta * L, 1.0, P))
    assert floor == pytest.approx(eta * sigma2 / P / 3)
    known = Constants(L, sigma2, 1.0, 1.0, L)
    for wrong in (printed.theorem5_d, printed.theorem5_d_appendix):
        claimed = np.asarray(wrong(eta, 1.0, P, known)) / (eta * L)
        assert claimed == pytest.approx(0.1 * eta * sigma2 / P)
        assert floor > 3 * claimed
    assert floor < np.asarray(theory.theorem5_d(eta, 1.0, P, known)) / (eta * L)
    # The same, measured.
    run = measure(
        quadratic(np.array([L])), np.zeros(1), Setting("prlc", eta, 1.0, P, 200, runs=500)
    )
    assert run.gaps[50:].mean() == pytest.approx(floor, rel=0.05)


@pytest.mark.parametrize(
    ("ratio", "workers", "excess"), [(0.05, 20, 2.8), (0.9, 20, 3.3), (0.999, 1, 254)]
)
def test_erratum_theorem5_step_admits_positive_h(ratio: float, workers: int, excess: float) -> None:
    """The printed step size is not a root of the printed H."""
    claimed = np.asarray(printed.theorem5_step_limit(ratio, workers))
    root = np.asarray(printed.theorem5_h_root(ratio, workers))
    assert printed.theorem5_h(root, ratio, workers) == pytest.approx(0, abs=1e-15)
    assert printed.theorem5_h(claimed, ratio, workers) > 0
    assert claimed / root == pytest.approx(excess, rel=0.03)


def test_erratum_theorem5_step_is_on_both_sides_of_the_derived_one() -> None:
    """Too large for few workers or r near 1, needlessly small for many workers and low r."""
    for ratio, workers, too_large in ((0.05, 1, True), (0.9, 20, True), (0.05, 20, False)):
        claimed = printed.theorem5_step_limit(ratio, workers)
        assert (claimed > theory.theorem5_step_limit(ratio)) == too_large
        assert (theory.theorem5_h(claimed, ratio, workers) > 0) == too_large


def test_erratum_theorem5_step_diverges_at_full_pulling() -> None:
    assert printed.theorem5_step_limit(1.0, 20) == np.inf
    assert printed.theorem5_step_limit(1 - 1e-9, 20) > 1e6
    assert theory.theorem5_step_limit(1.0) == 0.5


def test_erratum_gap_falls_as_the_pulling_ratio_rises() -> None:
    """The paper: "the gap of PRLC grows as the pulling ratio increases". It falls."""
    r = sp.Symbol("r", positive=True)
    slope = sp.diff((1 - r) * (2 - r) / r**2, r)
    assert sp.simplify(slope - (3 * r - 4) / r**3) == 0
    known = Constants(1.0, 1.0, 1.0, 1.0)
    grid = np.linspace(0.05, 1, 200)
    assert (np.diff(np.asarray(theory.theorem1_a(0.01, grid, 20, known))) < 0).all()


def test_erratum_asgd_scales_as_well_at_equal_work() -> None:
    """Theorem 4 lets T count one gradient for ASGD and P gradients for PRLC."""
    known = Constants(1.0, 1.0, 2.0, 0.0)
    P = np.array([1, 10, 100, 1000])
    eta, r = 1e-4, 0.4
    as_printed = np.asarray(theory.asgd_bound(eta, P, 10, known))
    equal_work = np.asarray(theory.asgd_equal_work_bound(eta, P, 10, known))
    prlc = np.asarray(theory.prlc_bounded_bound(eta, r, P, 10, known))
    assert (np.diff(as_printed) > 0).all()
    np.testing.assert_allclose(equal_work * P, equal_work[0])
    assert prlc[-1] > equal_work[-1]
    assert prlc[-1] * P[-1] > 2 * prlc[0]  # PRLC's own drift term does not fall with P
