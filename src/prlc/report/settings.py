"""What runs have in common, and what tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prlc.report.series import Run
from prlc.units import format_bandwidth, format_seconds, format_speed

Settings = dict[str, Any]

_MISSING = object()


def flat(config: Mapping[str, Any], within: str = "") -> Settings:
    """Nested settings under dotted names: `network.latency`. The command line is none of them."""
    settings: Settings = {}
    for key, value in config.items():
        if key == "command" and not within:
            continue
        if isinstance(value, Mapping):
            settings |= flat(value, f"{within}{key}.")
        else:
            settings[within + key] = value
    return settings


def split(runs: Sequence[Run]) -> tuple[Settings, list[Settings]]:
    """The settings that all runs share, and the others of each run."""
    all_of_them = [flat(run.config) for run in runs]
    differ = set(differing(all_of_them))
    shared = {key: value for key, value in all_of_them[0].items() if key not in differ}
    return shared, [{k: v for k, v in each.items() if k in differ} for each in all_of_them]


def differing(several: Sequence[Settings]) -> list[str]:
    """The names of settings that are not the same everywhere, in the order they come."""
    names = dict.fromkeys(name for settings in several for name in settings)
    first = several[0]
    return [
        name
        for name in names
        if any(each.get(name, _MISSING) != first.get(name, _MISSING) for each in several)
    ]


def show(name: str, value: Any) -> str:
    """A setting's value for people."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(show(name, each) for each in value)
    if value == "inf" and name in _UNITS:
        return "unlimited"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _UNITS[name](value) if name in _UNITS else _number(value)
    return str(value)


def word(name: str, value: Any) -> str:
    """A setting for a label: `lr 0.05`."""
    parts = name.split(".")
    noun = parts[0] if parts[-1] in ("name", "class") else parts[-1]
    return f"{noun.replace('_', ' ')} {show(name, value)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"


_UNITS: dict[str, Callable[[float], str]] = {
    **{f"network.{end}": format_bandwidth for end in ("server_up", "server_down")},
    **{f"network.{end}": format_bandwidth for end in ("worker_up", "worker_down")},
    **{f"network.{time}": format_seconds for time in ("latency", "step_seconds")},
    "network.compute_speed": format_speed,
}
