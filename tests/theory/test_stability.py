"""The moment recursion against simulation, and the stability limits against the recursion."""

from __future__ import annotations

import numpy as np
import pytest

from prlc import theory
from prlc.theory.stability import PullMethod

from .montecarlo import Setting, iterate, quadratic

METHODS: list[PullMethod] = ["prlc", "pr"]
WORKERS = np.array([1, 2, 3, 4, 8, 20, 50, 100, 1000])[:, None]
RATIOS = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0])


@pytest.mark.parametrize("shared_coin", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_moment_recursion_agrees_with_simulation(method: PullMethod, shared_coin: bool) -> None:
    curvature, eta, sigma, r, P, T = 2.0, 0.2, 0.7, 0.3, 3, 15
    setting = Setting(method, eta, r, P, T, runs=60_000, sigma=sigma, shared_coin=shared_coin)
    for w, local, _, _ in iterate(quadratic(np.array([curvature])), np.array([1.0]), setting):  # noqa: B007
        pass
    x, e = w[:, 0], local[:, :, 0] - w
    samples = np.stack((x**2, x * e[:, 0], e[:, 0] ** 2, e[:, 0] * e[:, 1]))
    error = samples.std(1) / np.sqrt(setting.runs)
    exact = theory.moment_path(
        method, eta * curvature, r, P, T - 1, start=1.0, noise=(sigma * eta) ** 2,
        shared_coin=shared_coin,
    )[-1]  # fmt: skip
    assert (np.abs(samples.mean(1) - exact) < 4 * error + 1e-12).all()
    assert (error[[0, 2]] < 0.02 * np.abs(exact[[0, 2]])).all()


def test_prlc_is_stable_up_to_two_over_the_curvature() -> None:
    limit = theory.prlc_stability_limit()
    assert limit == 2
    assert theory.prlc_stability_limit(4.0) == 0.5
    for share in (0.01, 0.3, 0.7, 0.999):
        assert (
            np.asarray(theory.spectral_radius("prlc", share * limit, RATIOS, WORKERS)) < 1
        ).all()
    assert (np.asarray(theory.spectral_radius("prlc", 1.001 * limit, RATIOS, WORKERS)) > 1).all()


@pytest.mark.parametrize("shared_coin", [False, True])
def test_pr_stability_limit_is_where_the_moments_stop_shrinking(shared_coin: bool) -> None:
    limit = np.asarray(theory.pr_stability_limit(RATIOS, WORKERS, shared_coin=shared_coin))
    for share in (0.01, 0.3, 0.7, 0.999):
        radius = theory.spectral_radius(
            "pr", share * limit, RATIOS, WORKERS, shared_coin=shared_coin
        )
        assert (np.asarray(radius) < 1).all()
    beyond = theory.spectral_radius("pr", 1.001 * limit, RATIOS, WORKERS, shared_coin=shared_coin)
    assert (np.asarray(beyond) > 1).all()


def test_pr_stability_limit_in_its_corners() -> None:
    np.testing.assert_allclose(
        theory.pr_stability_limit(RATIOS, 1), 2 * RATIOS / (2 - RATIOS), rtol=1e-12
    )
    assert theory.pr_stability_limit(1.0, 20) == 2
    assert theory.pr_stability_limit(1e-6, 20) == pytest.approx(20e-6, rel=1e-4)
    assert theory.pr_stability_limit(0.3, 1e12) == pytest.approx(2 * 1.7 / 0.3)
    assert theory.pr_stability_limit(0.01, 20) == pytest.approx(0.2, rel=0.01)
    np.testing.assert_allclose(
        theory.pr_stability_limit(0.1, [1, 20], shared_coin=True), 0.2 / 1.9, rtol=1e-12
    )


def test_noise_floor_is_the_end_of_the_path() -> None:
    floor = theory.noise_floor("prlc", 0.5, 0.1, 4)
    path = theory.moment_path("prlc", 0.5, 0.1, 4, 400, start=3.0, noise=2.0)
    assert path[-1, 0] == pytest.approx(2 * np.asarray(floor))
    assert theory.noise_floor("pr", 0.5, 0.01, 20) == np.inf
    sgd = 1 / (4 * (1 - 0.5**2))
    assert theory.noise_floor("prlc", 0.5, 1.0, 4) == pytest.approx(sgd)
    assert theory.noise_floor("pr", 0.5, 1.0, 4) == pytest.approx(sgd)


def test_noise_penalty_of_prlc_is_at_most_a_half() -> None:
    a, P = 1e-4, 1e6
    sgd = 1 / (P * (1 - (1 - a) ** 2))
    for x in (0.01, 0.1, 1.0, 10.0):
        exact = np.asarray(theory.noise_floor("prlc", a, x * a, P)) / sgd
        assert theory.prlc_noise_penalty(a, x * a) == pytest.approx(exact, rel=1e-3)
    assert 1.49 < theory.prlc_noise_penalty(0.5, 1e-3) < 1.5
    r, workers = np.geomspace(1e-5, 1, 100), np.array([1, 2, 4, 20, 100, 10_000])[:, None]
    for scaled in (0.1, 0.5, 1.0):
        floors = np.asarray(theory.noise_floor("prlc", scaled, r, workers))
        assert (floors < 1.5 * floors[:, -1:]).all()
    # Common pulls cost nothing: the mean of the workers stays the global model.
    common = theory.noise_floor("prlc", a, 0.1 * a, P, shared_coin=True)
    assert common == pytest.approx(sgd, rel=1e-6)


def test_local_models_separate_where_the_iid_bound_says() -> None:
    """Curvature -L: the spread (U, W) of many workers grows from the step limit on."""
    for r in (0.05, 0.3, 0.6):
        limit = float(theory.prlc_iid_step_limit(r))
        for share, grows in ((0.99, False), (1.01, True)):
            m = theory.moment_matrix("prlc", -share * limit, r, 1e9)
            assert (np.abs(np.linalg.eigvals(m[2:, 2:])).max() > 1) == grows


def test_pr_descends_faster_and_prlc_settles_lower_within_the_steps_of_theorem1() -> None:
    """Neither is better throughout: PR wins the descent, PRLC the noise floor."""
    r, P = np.array([0.01, 0.05, 0.1, 0.4, 0.7]), np.array([2, 4, 20, 100])[:, None]
    a = np.asarray(theory.theorem1_step_limit(r))
    floors = [np.asarray(theory.noise_floor(method, a, r, P)) for method in METHODS]
    assert (floors[0] < floors[1]).all()
    assert (floors[1] < 1.3 * floors[0]).all()
    prlc, pr = (
        theory.moment_path(method, a, r, P, 2000, start=1.0, noise=0.0)[..., 0].mean(0)
        for method in METHODS
    )
    assert (pr < prlc).all()
    assert (prlc < 1.3 * pr).all()


def test_beyond_the_limit_of_pr_only_prlc_holds() -> None:
    a, P = 0.5, 20
    r = np.array([0.01, 0.02])
    assert (np.asarray(theory.pr_stability_limit(r, P)) < a).all()
    assert (np.asarray(theory.noise_floor("pr", a, r, P)) == np.inf).all()
    sgd = np.asarray(theory.noise_floor("prlc", a, 1.0, P))
    assert (np.asarray(theory.noise_floor("prlc", a, r, P)) < 1.5 * sgd).all()
