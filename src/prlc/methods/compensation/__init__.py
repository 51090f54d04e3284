"""What a worker does between two looks at the global model: its guess of what everybody did.

base.py    what a compensation is, and what it may know
gains.py   `hold`, `own`, `share`, `snr`, `ahead`, `ahead-snr`: how much of the own update
drift.py   `gc`, `prox`, `scaffold`: corrections for data that differ
late.py    `mix`, `eager`: for models that arrive late
"""

from __future__ import annotations

from prlc import text
from prlc.errors import ConfigError
from prlc.methods.compensation.base import Compensation, Context, Pulled, State, Window
from prlc.methods.compensation.drift import ControlVariates, GainCorrection, Proximal
from prlc.methods.compensation.gains import Ahead, AheadBySignal, Hold, Own, Share, SignalToNoise
from prlc.methods.compensation.late import Eager, Mix

__all__ = [
    "COMPENSATIONS",
    "Ahead",
    "AheadBySignal",
    "Compensation",
    "Context",
    "ControlVariates",
    "Eager",
    "GainCorrection",
    "Hold",
    "Mix",
    "Own",
    "Proximal",
    "Pulled",
    "Share",
    "SignalToNoise",
    "State",
    "Window",
    "parse_compensation",
]

#: The values of `meanwhile=`.
COMPENSATIONS: dict[str, type[Compensation]] = {
    kind.name: kind
    for kind in (
        Hold,
        Own,
        Share,
        SignalToNoise,
        Ahead,
        AheadBySignal,
        GainCorrection,
        Proximal,
        Mix,
        ControlVariates,
        Eager,
    )
}


def parse_compensation(value: Compensation | str) -> Compensation:
    """Read a compensation from text: `own`, `share,0.5`, `gc,beta=0.02`."""
    if isinstance(value, Compensation):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"A compensation is written as text, such as own; got {value!r}.")
    return text.read(value, ",", "compensation", COMPENSATIONS, Compensation)  # type: ignore[type-abstract]
