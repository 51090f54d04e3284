"""The methods, one small file each, and the names by which the command line knows them."""

from __future__ import annotations

import dataclasses
from typing import Any

from prlc.errors import ConfigError
from prlc.methods.asgd import ASGD
from prlc.methods.base import Asynchronous, Lazy, Mask, Method, Scheduled
from prlc.methods.lag import LAGPS, LAGWK
from prlc.methods.local_sgd import LocalSGD
from prlc.methods.nsgd import NSGD
from prlc.methods.pr import PR
from prlc.methods.prlc import PRLC

__all__ = [
    "ASGD",
    "LAGPS",
    "LAGWK",
    "METHODS",
    "NSGD",
    "PR",
    "PRLC",
    "Asynchronous",
    "Lazy",
    "LocalSGD",
    "Mask",
    "Method",
    "Scheduled",
    "create",
    "option_names",
    "parse_method",
]

METHODS: dict[str, type[Method]] = {
    "nsgd": NSGD,
    "pr": PR,
    "prlc": PRLC,
    "lag-ps": LAGPS,
    "lag-wk": LAGWK,
    "local-sgd": LocalSGD,
    "asgd": ASGD,
}


def option_names(name: str) -> list[str]:
    """The hyper-parameters that the method `name` takes."""
    return [field.name for field in dataclasses.fields(_lookup(name))]  # type: ignore[arg-type]


def create(name: str, **options: Any) -> Method:
    """The method `name` with the given hyper-parameters; the rest keep their defaults."""
    method = _lookup(name)
    known = option_names(name)
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"{name} has no setting {option!r}: {takes}.")
    return method(**options)


def parse_method(text: str) -> Method:
    """A method as the command line names it: `nsgd`, `prlc:0.1`, `prlc:0.1:every=4`, `lag-ps:xi=2`.

    After the name come settings, separated by colons: a bare value is the first setting's.
    """
    name, *settings = text.split(":")
    known = option_names(name)
    options: dict[str, Any] = {}
    for number, setting in enumerate(settings):
        key, equals, value = setting.partition("=")
        if not equals:
            if number > 0 or not known:
                raise ConfigError(
                    f"In the method {text!r}, {setting!r} has no name: write it as setting=value."
                    if known
                    else f"{name} has no settings, but {setting!r} was given."
                )
            key, value = known[0], setting
        options[key.replace("-", "_")] = _value(value)
    return create(name, **options)


def _value(text: str) -> Any:
    """A setting's text as a truth value, a whole number or a number; else as it is."""
    if text.lower() in ("true", "yes", "false", "no"):
        return text.lower() in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _lookup(name: str) -> type[Method]:
    if name not in METHODS:
        raise ConfigError(f"There is no method {name!r}. Choose one of: {', '.join(METHODS)}.")
    return METHODS[name]
