"""Parse and format quantities: "100MB/s", "35ms", "20GFLOP/s".

Prefixes are decimal (MB is 10^6 bytes) unless they carry an i (MiB is 2^20 bytes). B is a byte;
b or bit is a bit. Inside the package everything is plain bytes, seconds and FLOP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from prlc.errors import ConfigError

__all__ = [
    "format_bandwidth",
    "format_bytes",
    "format_seconds",
    "format_speed",
    "parse_bandwidth",
    "parse_seconds",
    "parse_speed",
    "time_unit",
]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BITS_OR_BYTES = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "b": 1 / 8, "bit": 1 / 8, "bits": 1 / 8}

_BANDWIDTHS = {
    prefix + unit + per: scale * size
    for prefix, scale in (_DECIMAL | _BINARY).items()
    for unit, size in _BITS_OR_BYTES.items()
    for per in ("/s", "ps")
}
_SPEEDS = {
    prefix + unit: scale for prefix, scale in _DECIMAL.items() for unit in ("FLOP/s", "FLOPS")
}
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

_QUANTITY = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")
_UNLIMITED = ("inf", "unlimited")


def parse_bandwidth(value: str | float) -> float:
    """Bytes per second from "100MB/s", "20Mbit/s", "20Mbps", "1GiB/s", "inf" or a number."""
    return _parse(value, _BANDWIDTHS, 'a bandwidth such as "100MB/s" or "20Mbit/s"', limitless=True)


def parse_seconds(value: str | float) -> float:
    """Seconds from "35ms", "100us", "2s", "5min", "1.5h" or a number."""
    return _parse(value, _SECONDS, 'a time such as "35ms", "2s" or "1.5h"')


def parse_speed(value: str | float) -> float:
    """FLOP per second from "20GFLOP/s", "inf" or a number."""
    return _parse(value, _SPEEDS, 'a speed such as "20GFLOP/s"', limitless=True)


def _parse(
    value: str | float, units: Mapping[str, float], expected: str, limitless: bool = False
) -> float:
    """`value` in base units, which numbers and text without a unit already have."""
    number = math.nan
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match:
            digits, unit = match.groups()
            number = float(digits) * (units.get(unit, math.nan) if unit else 1.0)
        elif value.strip() in _UNLIMITED:
            number = math.inf
    elif type(value) is not bool and isinstance(value, float | int):
        number = float(value)
    if not number >= 0 or (math.isinf(number) and not limitless):
        raise ConfigError(f"Expected {expected}, but got {value!r}.")
    return number


def format_bytes(value: float) -> str:
    """Three digits and a unit, `44.7 MB`."""
    return _format(value, [(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")])


def format_bandwidth(value: float) -> str:
    """Three digits and a unit, `100 MB/s`; `unlimited` for infinity."""
    return "unlimited" if value == math.inf else format_bytes(value) + "/s"


def format_speed(value: float) -> str:
    """Three digits and a unit, `20 GFLOP/s`; `unlimited` for infinity."""
    units = [(1.0, "FLOP/s"), (1e3, "kFLOP/s"), (1e6, "MFLOP/s"), (1e9, "GFLOP/s")]
    return "unlimited" if value == math.inf else _format(value, [*units, (1e12, "TFLOP/s")])


def format_seconds(value: float) -> str:
    """Three digits and a unit, `35 ms` or `1.25 h`."""
    return _format(value, [(1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")])


def _format(value: float, units: Sequence[tuple[float, str]]) -> str:
    """`value` in the largest unit that it reaches once rounded, so 999.9 kB becomes 1 MB."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g} {'s' if units[0][1] == 'us' else units[0][1]}"
    size, name = units[0]
    for next_size, next_name in units[1:]:
        if float(f"{abs(value) / size:.3g}") * size >= next_size * (1 - 1e-9):
            size, name = next_size, next_name
    rounded = float(f"{value / size:.3g}")
    return f"{rounded:.0f} {name}" if abs(rounded) >= 100 else f"{rounded:g} {name}"


def time_unit(longest: float) -> tuple[float, str]:
    """A readable unit for an axis of times up to `longest` seconds: (seconds, name)."""
    units = (
        (86_400.0, "days"),
        (3_600.0, "hours"),
        (60.0, "minutes"),
        (1.0, "seconds"),
        (1e-3, "ms"),
    )
    return next((unit for unit in units if longest >= 2 * unit[0]), (1e-6, "microseconds"))
