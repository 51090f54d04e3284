"""Settings that make no sense are refused, with what came and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prlc.encodings import Grid, TopK
from prlc.errors import ConfigError, PrlcError
from prlc.methods import (
    ASGD,
    CMFL,
    LAGPS,
    LAGWK,
    LAQ,
    METHODS,
    PR,
    PRLC,
    SSP,
    LocalSGD,
    create,
    option_names,
    parse_method,
)


@pytest.mark.parametrize("ratio", [0, 0.0, 1.5, -1, "x", math.nan, math.inf, None])
@pytest.mark.parametrize("kind", [PR, PRLC])
def test_ratios_outside_the_half_open_interval(kind: Any, ratio: object) -> None:
    with pytest.raises(ConfigError, match=rf"must lie in \(0, 1\] but is {ratio}"):
        kind(ratio)


@pytest.mark.parametrize("every", [0, -3, 2.5, "x", None, math.nan])
def test_periods_that_are_no_positive_whole_number(every: Any) -> None:
    for make in (LocalSGD, lambda e: PR(0.5, e), lambda e: PRLC(0.5, every=e)):
        with pytest.raises(ConfigError, match=r"whole number of steps, at least 1") as error:
            make(every)
        assert f"but is {every!r}" in str(error.value)


@pytest.mark.parametrize("xi", [-0.1, math.nan, math.inf, "x", None])
@pytest.mark.parametrize("kind", [LAGPS, LAGWK, LAQ])
def test_patience_that_is_no_finite_number_from_zero(kind: Any, xi: object) -> None:
    with pytest.raises(
        ConfigError, match=f"xi must be a finite number of at least 0 but is {xi!r}"
    ):
        kind(xi=xi)


@pytest.mark.parametrize("window", [0, -1, 1.5, "x"])
@pytest.mark.parametrize("kind", [LAGPS, LAGWK, LAQ])
def test_windows_are_called_windows(kind: Any, window: object) -> None:
    with pytest.raises(ConfigError, match=r"window.*at least 1") as error:
        kind(window=window)
    assert repr(window) in str(error.value)


@pytest.mark.parametrize("smoothness", [0, -1.0, math.nan, math.inf, "x"])
def test_smoothness_that_is_not_positive(smoothness: Any) -> None:
    with pytest.raises(ConfigError, match="smoothness must be a positive number") as error:
        LAGPS(smoothness=smoothness)
    assert repr(smoothness) in str(error.value)


@pytest.mark.parametrize("value", ["no", 2, None])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match="staleness"):
        ASGD(staleness_aware=value)


@pytest.mark.parametrize("bits", [0, 9, 32, 2.5, "x", True])
def test_bits_of_a_grid(bits: Any) -> None:
    with pytest.raises(ConfigError, match="1 to 8 bits") as error:
        LAQ(up=Grid(bits))
    assert repr(bits) in str(error.value)


@pytest.mark.parametrize("longest", [0, -2, 2.5, "x", None, math.nan])
def test_a_while_of_laq(longest: Any) -> None:
    with pytest.raises(ConfigError, match=r"`longest` must be a whole number of steps") as error:
        LAQ(longest=longest)
    assert repr(longest) in str(error.value)


def test_changes_feed_their_errors_back_by_themselves() -> None:
    assert parse_method("laq:up=topk,0.1").up == TopK(0.1)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="takes no decay"):
        parse_method("laq:up=topk,0.1,decay=0.5")


@pytest.mark.parametrize("threshold", [-0.1, 1.1, "x", None, math.nan, True])
def test_thresholds_of_cmfl(threshold: Any) -> None:
    with pytest.raises(ConfigError, match=r"a share of all numbers in \[0, 1\]") as error:
        CMFL(threshold)
    assert repr(threshold) in str(error.value)


@pytest.mark.parametrize("decay", [1, "x", None])
def test_decay_of_cmfl(decay: Any) -> None:
    with pytest.raises(ConfigError, match="decay must be yes or no"):
        CMFL(decay=decay)


@pytest.mark.parametrize("window", [-1, 1.5, "x", None, math.nan, True, -math.inf])
def test_windows_of_ssp(window: Any) -> None:
    with pytest.raises(ConfigError, match="whole number of steps, 0 or more, or inf") as error:
        SSP(window)
    assert repr(window) in str(error.value)


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(value: bool) -> None:
    for make in (PR, LocalSGD, lambda v: LAGWK(xi=v)):
        with pytest.raises(ConfigError, match=str(value)):
            make(value)


@pytest.mark.parametrize("name", ["", "sgd", "PRLC", "prlc "])
def test_unknown_methods(name: str) -> None:
    for ask in (create, option_names):
        with pytest.raises(ConfigError, match=f"no method {name!r}") as error:
            ask(name)
        assert ", ".join(METHODS) in str(error.value)


def test_unknown_settings() -> None:
    with pytest.raises(
        ConfigError, match=r"prlc has no setting 'ratio': it takes pull_ratio, every"
    ):
        create("prlc", ratio=0.1)
    with pytest.raises(ConfigError, match=r"asgd has no setting 'every': it takes staleness_aware"):
        create("asgd", every=3)


def test_bad_settings_are_refused_by_name_too() -> None:
    with pytest.raises(ConfigError, match=r"but is 1\.5"):
        create("prlc", pull_ratio=1.5)


def test_they_can_be_caught_as_any_error_of_the_package_or_as_a_value_error() -> None:
    for kind in (PrlcError, ValueError):
        with pytest.raises(kind, match="pull ratio"):
            PRLC(2.0)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert PRLC(1).pull_ratio == 1
    assert PRLC(1e-9).pull_ratio == 1e-9
    assert LocalSGD(1).every == 1
    assert LAGWK(xi=0, window=1).xi == 0
    assert SSP(0).window == 0
    assert parse_method("ssp:inf") == SSP(math.inf)
