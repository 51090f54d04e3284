"""The methods, by the names that the command line takes.

base.py          three families, and all that engines know of them
presets.py       published methods as choices of parts
lag.py, cmfl.py, asgd.py  methods that decide online
triggers.py      when a lazy worker's message is worth sending
timetable.py     who takes part, pushes and pulls what at each step
compensation/    what a worker does between two pulls
check.py         which parts go together
settings.py      checks of single settings
"""

from __future__ import annotations

from typing import Any

from prlc import text
from prlc.errors import ConfigError
from prlc.methods.asgd import ASGD, SSP
from prlc.methods.base import SETTINGS, Asynchronous, Lazy, Mask, Method, Scheduled
from prlc.methods.cmfl import CMFL
from prlc.methods.compensation import (
    COMPENSATIONS,
    Compensation,
    Context,
    Pulled,
    Share,
    State,
    Window,
)
from prlc.methods.lag import LAGPS, LAGWK, LAQ
from prlc.methods.presets import (
    EF21P,
    NSGD,
    PR,
    PRLC,
    QSGD,
    SCAFFOLD,
    STC,
    CoCoDSGD,
    DeMo,
    DiLoCo,
    EagerDiLoCo,
    FedProx,
    LocalSGD,
    PipeSGD,
    SparseLoCo,
    StreamingDiLoCo,
    TernGrad,
    TopKSGD,
    Whisper,
)
from prlc.methods.timetable import Timetable, Turn

__all__ = [
    "ASGD",
    "CMFL",
    "COMPENSATIONS",
    "EF21P",
    "LAGPS",
    "LAGWK",
    "LAQ",
    "METHODS",
    "NSGD",
    "PR",
    "PRLC",
    "QSGD",
    "SCAFFOLD",
    "SETTINGS",
    "SSP",
    "STC",
    "Asynchronous",
    "CoCoDSGD",
    "Compensation",
    "Context",
    "DeMo",
    "DiLoCo",
    "EagerDiLoCo",
    "FedProx",
    "Lazy",
    "LocalSGD",
    "Mask",
    "Method",
    "PipeSGD",
    "Pulled",
    "Scheduled",
    "Share",
    "SparseLoCo",
    "State",
    "StreamingDiLoCo",
    "TernGrad",
    "Timetable",
    "TopKSGD",
    "Turn",
    "Whisper",
    "Window",
    "create",
    "option_names",
    "parse_method",
    "recommended",
]

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        NSGD,
        PR,
        PRLC,
        LAGPS,
        LAGWK,
        LAQ,
        CMFL,
        LocalSGD,
        ASGD,
        SSP,
        PipeSGD,
        CoCoDSGD,
        DiLoCo,
        StreamingDiLoCo,
        EagerDiLoCo,
        FedProx,
        SCAFFOLD,
        SparseLoCo,
        QSGD,
        TernGrad,
        TopKSGD,
        EF21P,
        STC,
        DeMo,
        Whisper,
    )
}


def recommended() -> str:
    """The name of the method to take without a reason for another."""
    return next(name for name, kind in METHODS.items() if kind.recommended)


def option_names(name: str) -> list[str]:
    """The settings that the method `name` takes."""
    return text.setting_names(text.find(name, ":", "method", METHODS, Method))


def create(name: str, **options: Any) -> Method:
    """Make the method `name`; settings that are not given keep their defaults."""
    text.check_names(name, options, option_names(name))
    return text.find(name, ":", "method", METHODS, Method)(**options)  # type: ignore[type-abstract]


def parse_method(value: str | Method) -> Method:
    """Read a method from text: `nsgd`, `prlc:0.1:every=4`, `mine.py:Mine:setting=2`.

    Settings follow the name, separated by colons; a bare value is the first setting.
    """
    if isinstance(value, Method):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"A method is written as text, such as prlc:0.1; got {value!r}.")
    return text.read(value, ":", "method", METHODS, Method)  # type: ignore[type-abstract]
