"""Checks of single settings."""

from __future__ import annotations

import math

from prlc.errors import ConfigError
from prlc.text import is_number

_RAREST = 1e-9  # a pull in a billion steps: as rare as any run is long


def check_ratio(pull_ratio: object) -> None:
    """Refuse a probability of pulling outside (0, 1]."""
    if not (is_number(pull_ratio) and _RAREST <= pull_ratio <= 1.0):
        raise ConfigError(
            f"The pull ratio must lie in (0, 1] but is {pull_ratio}: it is the probability that a "
            "worker pulls at a step. Take 1 to pull at every step, 0.1 at every tenth."
        )


def check_steps(name: str, steps: object, *, least: int = 1, most: int = 10**9) -> None:
    """Refuse a number of steps that is not a whole number from `least` to `most`."""
    if type(steps) is not int or steps < least:
        raise ConfigError(
            f"`{name}` must be a whole number of steps, at least {least}, but is {steps!r}."
        )
    if steps > most:
        raise ConfigError(f"`{name}` must be {most:,} steps at most but is {steps:,}.")


def check_number(name: str, value: object, *, least: float = 0.0) -> None:
    """Refuse a setting that is not a finite number of at least `least`."""
    if not (is_number(value) and math.isfinite(value) and value >= least):
        raise ConfigError(f"{name} must be a finite number of at least {least:g} but is {value!r}.")


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a value that is not one of `known`."""
    if value not in known:
        raise ConfigError(f"`{name}` must be one of {', '.join(known)} but is {value!r}.")
