"""Which pull ratio and step size to use on a network, how long training takes, and why."""

from prlc.planner.advice import Advice, Effort, Row
from prlc.planner.bounds import BoundAnswer, StepLimits, parse_constants
from prlc.planner.cost import RESOURCES, Price, StepClock, Work, price
from prlc.planner.recommend import RATIOS, advise, make_trials
from prlc.planner.trials import TrialProgress, Trials

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
