"""Which pull ratio and step size to use on a given network, how long it takes, what limits."""

from __future__ import annotations

from prlc.planner.advice import Advice, Effort, Row
from prlc.planner.bounds import BoundAnswer, StepLimits, parse_constants
from prlc.planner.cost import RESOURCES, Price, StepClock, Work, price
from prlc.planner.plan import RATIOS, advise, make_trials
from prlc.planner.search import TrialProgress
from prlc.planner.trials import Trials

__all__ = [
    "RATIOS",
    "RESOURCES",
    "Advice",
    "BoundAnswer",
    "Effort",
    "Price",
    "Row",
    "StepClock",
    "StepLimits",
    "TrialProgress",
    "Trials",
    "Work",
    "advise",
    "make_trials",
    "parse_constants",
    "price",
]
