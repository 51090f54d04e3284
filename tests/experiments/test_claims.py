"""Every claim on curves where it holds, holds in part, does not hold, or cannot be judged."""

from __future__ import annotations

import dataclasses
import math

import pytest

from prlc.experiments import claims
from prlc.experiments.claims import CLAIMS, LIMITS, Finding
from prlc.report import Outcome

from .builders import run, series

HOLDS, IN_PART, FAILS = Outcome.HOLDS, Outcome.IN_PART, Outcome.FAILS
NSGD = series(run([2.0, 1.5, 1.2, 1.0]), label="NSGD")
BROKEN = series(run([2.0, 9.0], finished=False), label="PRLC r=0.4")


def test_every_claim_has_a_sentence_and_limits_are_plain_numbers() -> None:
    assert len(CLAIMS) == 7
    assert all(claim.text for claim in CLAIMS.values())
    for limit in dataclasses.asdict(LIMITS).values():
        assert all(math.isfinite(n) for n in (limit if isinstance(limit, tuple) else (limit,)))


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
