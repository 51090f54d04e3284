"""Numbers read off curves."""

from __future__ import annotations

import math

import pytest

from prlc.experiments.curves import Ratio, first_reached, mean_loss, ratio

from .builders import run


def test_a_loss_is_reached_between_two_evaluations() -> None:
    curve = run([2.0, 1.0, 0.5], pulls=10)
    assert first_reached(curve, "pulls_per_worker", 1.5) == pytest.approx(5.0)
    assert first_reached(curve, "pulls_per_worker", 0.5) == pytest.approx(20.0)
    assert first_reached(curve, "pulls_per_worker", 3.0) == 0.0
    assert first_reached(curve, "pulls_per_worker", 0.4) == math.inf


def test_it_is_the_first_time_that_counts() -> None:
    assert first_reached(run([2.0, 1.0, 2.0, 1.0]), "epoch", 1.0) == 1.0


def test_the_mean_loss_leaves_out_the_start_and_takes_in_the_end() -> None:
    assert mean_loss(run([9.0, 1.0, 2.0, 7.0]), 0, 2) == pytest.approx(1.5)


def test_a_ratio_shows_its_range_only_where_seeds_differ() -> None:
    assert str(Ratio((0.4,))) == "0.40"
    assert str(Ratio((0.401, 0.402))) == "0.40"
    assert str(Ratio((0.4, 0.5))) == "0.45 (0.40 to 0.50)"


def test_a_ratio_with_anything_missing_is_none() -> None:
    assert ratio([1.0, math.inf], [1.0, 1.0]) is None
    assert ratio([1.0], [0.0]) is None
    assert ratio([math.nan], [1.0]) is None
