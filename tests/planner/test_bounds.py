"""What the theory contributes: admissible steps, preferred ratios, constants as text."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from prlc.errors import ConfigError
from prlc.planner import StepLimits, parse_constants
from prlc.planner.bounds import BOUNDS, answers, learning_rates
from prlc.theory import Constants, prlc_bounded_bound, theorem1_bound

KNOWN = Constants(smoothness=2.0, variance=3.0, gradient_bound=1.0, initial_gap=2.0)


def test_constants_are_read_from_text() -> None:
    assert parse_constants("L=2, sigma2=3,G=1,gap=2") == KNOWN


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("L=2", "sigma2, G, gap is missing"),
        ("L=2,sigma2=3,G=1,gap=x", "gap should be a number"),
        ("L=2,sigma2=3,G=1,beta=1", "'beta=1' is none of L, sigma2, G, gap"),
        ("", "is none of"),
        ("L=-2,sigma2=3,G=1,gap=2", "smoothness should be above 0, but is -2"),
        ("L=2,sigma2=-3,G=1,gap=2", "variance should be at least 0, but is -3"),
        ("L=2,sigma2=3,G=-1,gap=2", "gradient_bound should be at least 0, but is -1"),
        ("L=2,sigma2=3,G=1,gap=-2", "initial_gap should be at least 0, but is -2"),
        ("L=nan,sigma2=3,G=1,gap=2", "smoothness should be above 0, but is nan"),
    ],
)
def test_bad_constants_get_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_constants(text)


def test_trials_go_from_the_stability_limit_down() -> None:
    rates = learning_rates(2.0)
    assert rates[-1] == 1.0
    assert all(a == b / 2 for a, b in pairwise(rates))


def test_a_step_outside_the_range_is_told_the_largest_inside() -> None:
    limits = StepLimits.at(0.5, 2.0)
    assert (limits.theorem1, limits.proved, limits.stable) == pytest.approx((1 / 12, 0.5, 1.0))
    assert limits.judge(limits.theorem1, 0.5) is None
    for lr, said in ((0.3, "up to 0.5"), (0.7, "0.5 by"), (3.0, "even beyond 1 = 2/L")):
        sentence = limits.judge(lr, 0.5)
        assert sentence is not None
        assert "largest admissible is 0.08333" in sentence
        assert said in sentence


@pytest.mark.parametrize("name", list(BOUNDS))
def test_the_bound_at_the_answer_is_that_of_nsgd(name: str) -> None:
    found = answers(name, {1.0: 1.0, 0.5: 0.6, 0.1: 0.2}, 20, 500, KNOWN)
    bound = {"theorem1": theorem1_bound, "bounded_gradients": prlc_bounded_bound}[name]
    values = [bound(a.lr, r, 20, a.steps, KNOWN) for r, a in found.items()]
    assert values == pytest.approx([values[0]] * 3, rel=2e-3)
    assert found[1.0].steps == 500
    assert found[0.1].steps > found[0.5].steps > 500
    assert found[0.1].seconds == pytest.approx(0.2 * found[0.1].steps)


def test_without_drift_or_noise_fewer_pulls_cost_nothing() -> None:
    still = Constants(smoothness=2.0, variance=0.0, gradient_bound=0.0, initial_gap=2.0)
    found = answers("bounded_gradients", {1.0: 1.0, 0.1: 0.5}, 20, 500, still)
    assert found[0.1].steps == pytest.approx(500, rel=2e-3)
    assert found[0.1].lr == found[1.0].lr == 0.5


def test_a_fixed_step_may_never_get_there() -> None:
    noisy = Constants(smoothness=2.0, variance=0.1, gradient_bound=50.0, initial_gap=2.0)
    found = answers("bounded_gradients", {1.0: 1.0, 0.1: 0.5}, 20, 500, noisy, rates=(0.1,))
    assert found[0.1].steps == math.inf
    with pytest.raises(ConfigError, match=r"use at most 0\.5"):
        answers("bounded_gradients", {1.0: 1.0}, 20, 500, noisy, rates=(0.7,))
