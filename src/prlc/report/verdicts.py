"""Whether a claim holds in our runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"


@dataclass(frozen=True)
class Verdict:
    """One claim against what was measured."""

    figure: str
    """Where the claim is made: "fig1"."""
    claim: str
    setting: str
    """What it was tried on: "logistic, lr 0.1"."""
    measured: str
    """The figures, in a sentence."""
    outcome: Outcome
