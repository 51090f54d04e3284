"""Quantities: parsing, formatting, refusals."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prlc.errors import ConfigError
from prlc.network.units import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    format_speed,
    parse_bandwidth,
    parse_seconds,
    parse_speed,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100MB/s", 100e6),
        ("100 MB/s", 100e6),
        (" 1GB/s ", 1e9),
        ("100MiB/s", 100 * 2**20),
        ("100MBps", 100e6),
        ("20Mbit/s", 2.5e6),
        ("20Mb/s", 2.5e6),
        ("20Mbps", 2.5e6),
        ("8kb/s", 1e3),
        ("8Kib/s", 1024),
        ("1.5e2B/s", 150),
        (".5kB/s", 500),
        ("250", 250),
        ("inf", math.inf),
        ("unlimited", math.inf),
        (7, 7),
        (2.5, 2.5),
        (math.inf, math.inf),
    ],
)
def test_bandwidth(text: str | float, expected: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("35ms", 0.035),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("2s", 2),
        ("1.5min", 90),
        ("2 h", 7200),
        (3, 3),
        ("0", 0),
    ],
)
def test_seconds(text: str | float, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GFLOP/s", 20e9),
        ("1.5TFLOPS", 1.5e12),
        ("5 MFLOP/s", 5e6),
        ("9kFLOP/s", 9e3),
        (1e9, 1e9),
    ],
)
def test_speed(text: str | float, expected: float) -> None:
    assert parse_speed(text) == pytest.approx(expected)


BAD = ["", "fast", "-3", "1.2.3", "nan", math.nan, -1.0, True, None, [1]]


@pytest.mark.parametrize("value", [*BAD, "100MB", "100mb/s", "100ms", "-1MB/s", "MB/s", "1e"])
def test_a_bad_bandwidth_says_what_was_expected_and_what_came(value: Any) -> None:
    sentence = f'Expected a bandwidth such as "100MB/s" or "20Mbit/s", but got {value!r}.'
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        parse_bandwidth(value)


@pytest.mark.parametrize("value", ["inf", math.inf, "35 m s", "3MB/s", "35Ms", "-1s"])
def test_a_bad_time(value: str | float) -> None:
    with pytest.raises(ConfigError, match=r'such as "35ms", "2s" or "1\.5h", but got '):
        parse_seconds(value)


def test_a_bad_speed() -> None:
    with pytest.raises(ConfigError, match=r"Expected a speed .* but got '20GB/s'\.$"):
        parse_speed("20GB/s")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (7, "7 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (44_700_000, "44.7 MB"),
        (999_499, "999 kB"),
        (999_900, "1 MB"),
        (1.234e12, "1.23 TB"),
        (1.2345e16, "12300 TB"),
        (-2.5e6, "-2.5 MB"),
    ],
)
def test_format_bytes(value: float, expected: str) -> None:
    assert format_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 s"),
        (1e-4, "100 us"),
        (0.035, "35 ms"),
        (8.94, "8.94 s"),
        (0.9999, "1 s"),
        (59.94, "59.9 s"),
        (59.99, "1 min"),
        (90, "1.5 min"),
        (4500, "1.25 h"),
        (140_000, "38.9 h"),
        (math.inf, "inf s"),
    ],
)
def test_format_seconds(value: float, expected: str) -> None:
    assert format_seconds(value) == expected


def test_format_rates() -> None:
    assert format_bandwidth(100e6) == "100 MB/s"
    assert format_bandwidth(math.inf) == "unlimited"
    assert format_speed(20e9) == "20 GFLOP/s"
    assert format_speed(math.inf) == "unlimited"


@given(st.floats(1e-5, 1e13))
def test_what_is_written_can_be_read_back(value: float) -> None:
    assert parse_bandwidth(format_bandwidth(value)) == pytest.approx(value, rel=6e-3)
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=6e-3)
    assert parse_speed(format_speed(value)) == pytest.approx(value, rel=6e-3)
