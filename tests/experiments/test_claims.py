"""Every claim on curves where it holds, holds in part and does not, and where none can say."""

from __future__ import annotations

import math

import pytest

from prlc.experiments import claims
from prlc.experiments.claims import CLAIMS, LIMITS, Finding
from prlc.experiments.measures import Ratio, first_reached, mean_loss, ratio
from prlc.report import Outcome

from .curves import run, series

HOLDS, IN_PART, FAILS = Outcome.HOLDS, Outcome.IN_PART, Outcome.FAILS
NSGD = series(run([2.0, 1.5, 1.2, 1.0]), label="NSGD")
BROKEN = series(run([2.0, 9.0], finished=False), label="PRLC r=0.4")


def test_every_claim_has_a_sentence_and_limits_are_plain_numbers() -> None:
    assert len(CLAIMS) == 7
    for limit in LIMITS.values():
        assert all(math.isfinite(n) for n in (limit if isinstance(limit, tuple) else (limit,)))


# -- what is measured -----------------------------------------------------------------------------


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


# -- what it means --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "outcome"), [(1.6, HOLDS), (1.505, IN_PART), (1.4, FAILS), (1.5, IN_PART)]
)
def test_slower_start(first: float, outcome: Outcome) -> None:
    prlc = series(run([2.0, first, 1.2, 1.0]))
    assert claims.slower_start(NSGD, prlc, stage=1).outcome == outcome


@pytest.mark.parametrize(
    ("last", "outcome"), [(1.0, HOLDS), (0.5, HOLDS), (1.01, HOLDS), (1.04, IN_PART), (1.06, FAILS)]
)
def test_same_floor(last: float, outcome: Outcome) -> None:
    assert claims.same_floor(NSGD, series(run([2.0, 1.5, 1.2, last]))).outcome == outcome


@pytest.mark.parametrize(
    ("pulls", "outcome"), [(0.4, HOLDS), (0.6, HOLDS), (0.1, IN_PART), (0.8, IN_PART), (1.0, FAILS)]
)
def test_half_the_pulls(pulls: float, outcome: Outcome) -> None:
    found = claims.half_the_pulls(NSGD, series(run([2.0, 1.5, 1.2, 1.0], pulls=pulls)))
    assert found.outcome == outcome
    assert found.numbers["pull_ratio"] == pytest.approx(pulls)


def test_a_loss_that_is_never_reached_says_so() -> None:
    found = claims.half_the_pulls(NSGD, series(run([2.0, 1.5, 1.2, 1.1])))
    assert (found.outcome, found.measured) == (
        FAILS,
        "PRLC never comes within 1% of NSGD's final loss",
    )


def test_where_nsgd_learns_nothing_pulls_cannot_be_compared() -> None:
    flat = series(run([1.0, 1.0, 1.0]), label="NSGD")
    found = claims.half_the_pulls(flat, flat)
    assert found == Finding("NSGD ends no lower than it began", FAILS)


@pytest.mark.parametrize(("pulls", "outcome"), [(1.0, HOLDS), (0.9, IN_PART), (0.3, FAILS)])
def test_lag_saves_nothing(pulls: float, outcome: Outcome) -> None:
    lag = series(run([2.0, 1.5, 1.2, 1.0], pulls=pulls))
    assert claims.lag_saves_nothing(NSGD, lag).outcome == outcome


@pytest.mark.parametrize(
    ("first", "last", "outcome"),
    [(3.0, 1.01, HOLDS), (3.0, 1.9, IN_PART), (1.52, 1.0, IN_PART), (1.6, 1.2, FAILS)],
)
def test_gap_shrinks(first: float, last: float, outcome: Outcome) -> None:
    nsgd, other = (series(run([9.0, 9.0, a, 9.0, b])) for a, b in ((1.5, 1.0), (first, last)))
    assert claims.gap_shrinks([nsgd, other], stage=2, stages=2).outcome == outcome


@pytest.mark.parametrize(("last", "outcome"), [(1.2, HOLDS), (1.05, IN_PART), (1.01, FAILS)])
def test_compensation(last: float, outcome: Outcome) -> None:
    assert claims.compensation(NSGD, series(run([2.0, last]))).outcome == outcome


def test_pr_that_diverges_is_far_worse_but_prlc_must_not() -> None:
    assert claims.compensation(NSGD, BROKEN).outcome == HOLDS
    assert claims.compensation(BROKEN, NSGD).outcome == FAILS


@pytest.mark.parametrize(
    ("ahead", "barrier", "outcome"),
    [
        (0.7, 0.75, HOLDS),
        (0.7, 0.9, IN_PART),
        (0.5, 0.6, IN_PART),
        (0.7, 1.2, IN_PART),
        (1.0, 1.2, FAILS),
    ],
)
def test_time_of_asgd(ahead: float, barrier: float, outcome: Outcome) -> None:
    losses = [2.0, 1.5, 1.2, 1.0]
    curves = [series(run(losses, seconds=s)) for s in (1.0, ahead, barrier)]
    found = claims.time_of_asgd(*curves)
    assert found.outcome == outcome
    assert found.numbers["run_ahead"] == pytest.approx(ahead)
    assert found.numbers["barrier_epochs"] == pytest.approx(barrier)


def test_the_common_loss_is_that_of_the_worse() -> None:
    worse, better = series(run([2.0, 1.5, 1.5])), series(run([2.0, 1.0, 0.5]))
    found = claims.time_of_asgd(worse, better, better)
    assert found.numbers["run_ahead"] < 1
    assert found.numbers["run_ahead_epochs"] == 1


def test_what_diverged_is_named() -> None:
    for found in (
        claims.slower_start(NSGD, BROKEN, stage=1),
        claims.same_floor(NSGD, BROKEN),
        claims.half_the_pulls(NSGD, BROKEN),
        claims.lag_saves_nothing(NSGD, BROKEN),
        claims.gap_shrinks([NSGD, BROKEN], stage=1, stages=3),
        claims.time_of_asgd(BROKEN, NSGD, NSGD),
    ):
        assert found == Finding("PRLC r=0.4 diverged", FAILS)


def test_one_diverged_seed_is_enough() -> None:
    mixed = series(run([2.0, 1.0]), run([2.0, 9.0], finished=False), label="PRLC r=0.4")
    two = series(run([2.0, 1.0]), run([2.0, 1.0]), label="NSGD")
    assert claims.same_floor(two, mixed).measured == "PRLC r=0.4 diverged"


def test_seeds_are_compared_pair_by_pair() -> None:
    nsgd = series(run([2.0, 1.0]), run([4.0, 2.0]))
    prlc = series(run([2.0, 1.0], pulls=0.4), run([4.0, 2.0], pulls=0.6))
    found = claims.half_the_pulls(nsgd, prlc)
    assert found.measured.startswith("0.50 (0.40 to 0.60) of NSGD's pulls")
    assert found.numbers == pytest.approx(
        {"pull_ratio": 0.5, "pull_ratio_low": 0.4, "pull_ratio_high": 0.6}
    )
