"""Which member of the family to train with on a network, and what that costs."""

from prlc.planner.cost import GOALS, Cost, Price, infinitely_fast
from prlc.planner.family import FAMILY, Line
from prlc.planner.prices import Choice
from prlc.planner.recommend import EVAL_SAMPLES, WITHIN, Plan, plan
from prlc.planner.search import SearchProgress
from prlc.planner.trials import Candidate, Trials

__all__ = [
    "EVAL_SAMPLES",
    "FAMILY",
    "GOALS",
    "WITHIN",
    "Candidate",
    "Choice",
    "Cost",
    "Line",
    "Plan",
    "Price",
    "SearchProgress",
    "Trials",
    "infinitely_fast",
    "plan",
]
